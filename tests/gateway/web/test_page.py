"""The page's files: what they weigh, where they come from, and how they are served."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path, PurePosixPath

import httpx
import pytest

import gateway.web
from gateway.web.page import PREFIX, START, page_files
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

FOLDER = Path(gateway.web.__file__).parent
FILES = page_files()
OWN = sorted(name for name in FILES if not name.startswith("vendor/"))
MOST_BYTES = 150_000
_NAMESPACES = ("http://www.w3.org/2000/svg",)


def test_the_page_is_light() -> None:
    assert sum(len(file.content) for file in FILES.values()) <= MOST_BYTES


def test_files_of_others_are_what_the_list_says() -> None:
    listed = {entry["name"]: entry for entry in tomllib.loads((FOLDER / "vendored.toml").read_text())["file"]}
    assert set(listed) == {name for name in FILES if name.startswith("vendor/")}
    for name, entry in listed.items():
        assert hashlib.sha256(FILES[name].content).hexdigest() == entry["sha256"], name
        for licence in entry["licences"]:
            assert (FOLDER / "licenses" / f"{licence}.txt").read_text().strip()


@pytest.mark.parametrize("name", OWN)
def test_what_a_file_names_is_there_and_nothing_is_elsewhere(name: str) -> None:
    text = FILES[name].content.decode()
    assert not [url for url in re.findall(r"https?://[^\"' )]+", text) if url not in _NAMESPACES]
    folder = PurePosixPath(name).parent
    for target in re.findall(r'from "(\./[^"]+)"|import "(\./[^"]+)"', text):
        assert str(folder / "".join(target).removeprefix("./")) in FILES
    if name == START:
        for target in re.findall(r'(?:src|href)="([^"]+)"', text):
            assert target.removeprefix(PREFIX.strip("/") + "/") in FILES
        assert "<style" not in text and not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", text)


@pytest.mark.parametrize("name", [name for name in OWN if name.endswith(".js")])
def test_texts_never_become_markup(name: str) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|document\.write|eval\(|new Function",
                         FILES[name].content.decode())  # fmt: skip


def test_files_are_served_with_a_strict_policy_and_kept_by_their_tags(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.http_url) as client:
        for path, name in [("/", START), *((PREFIX + name, name) for name in FILES)]:
            answer = client.get(path)
            assert (answer.status_code, answer.content) == (200, FILES[name].content)
            assert answer.headers["content-type"] == FILES[name].media_type
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert client.head("/").status_code == 200
        assert client.post("/").status_code == 405
        for path in (PREFIX, PREFIX + "none.js", PREFIX + "../page.py", PREFIX + "..%2fpage.py", "/page"):
            missing = client.get(path)
            assert (missing.status_code, missing.headers["content-type"]) == (404, "application/json")


def test_an_operator_may_have_none(tokenizer_folder: Path, verify: FakeVerify) -> None:
    with (
        GatewayProcess(tokenizer_folder, verify.address, "--no-page") as process,
        httpx.Client(base_url=process.http_url) as client,
    ):
        assert client.get("/").status_code == client.get(PREFIX + "main.js").status_code == 404
        assert client.get("/v1/models").status_code == 200
