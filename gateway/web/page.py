"""Serves the page: a browser's view of the API, made of files of this package alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX: Final = "/page/"
"""Where the page's files are, all but the page itself, which is at `/`."""
START: Final = "index.html"

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    # Nothing comes from elsewhere, nothing runs that is no file of the page, and no other page may frame this one.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent; `tag` changes with its content."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """What is served, by the path below the page's folder."""
    found = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[path.relative_to(_FOLDER).as_posix()] = PageFile(content, _TYPES[path.suffix], tag)
    return found


def page_routes() -> list[Route]:
    """Routes of the page and its files. Files are read once, here; names that are none of theirs are unknown paths."""
    files = page_files()

    async def start(request: Request) -> Response:
        return _answer(request, files[START])

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return _answer(request, found)

    return [Route("/", start), Route(PREFIX + "{name:path}", file)]


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
