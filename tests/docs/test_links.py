"""Every relative link of the documentation, its anchor included, leads somewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")
HTML_LINK = re.compile(r"""\b(?:href|src|srcset)\s*=\s*["']([^"'\s]+)""")
HTML_ANCHOR = re.compile(r"""\b(?:id|name)\s*=\s*["']([^"']+)""")


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        yield token
        yield from token.children or ()


def links(text: str) -> list[str]:
    """Where links, images and HTML of a page lead, those to other hosts left out."""
    found: list[str] = []
    for token in tokens(text):
        if token.type in {"html_block", "html_inline"}:
            found += HTML_LINK.findall(token.content)
        found += [str(token.attrs[name]) for name in ("href", "src") if name in token.attrs]
    return [link for link in found if not ELSEWHERE.match(link)]


def slug(heading: Token) -> str:
    """A heading's anchor as GitHub makes it."""
    text = "".join(child.content for child in heading.children or () if child.type in {"text", "code_inline"})
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """A page's headings, equal ones numbered from the second on, and what its HTML names."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    previous = ""
    for token in tokens(text):
        if token.type == "inline" and previous == "heading_open":
            name = slug(token)
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
        if token.type in {"html_block", "html_inline"}:
            found.update(HTML_ANCHOR.findall(token.content))
        previous = token.type
    return found


@cache
def anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text(encoding="utf-8"))


def dead(text: str, page: Path) -> list[str]:
    """Links of a text, which stands where the page does, that lead nowhere within the project."""
    found = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            found.append(link)
        elif anchor and target.suffix == ".md":
            own = anchors(text) if target == page else anchors_of(target)
            found += [link] if unquote(anchor) not in own else []
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page.read_text(encoding="utf-8"), page) == []


def test_links_that_lead_nowhere_are_found() -> None:
    text = """
# One thing: `two`, and more
## Same
## Same
<a id="named"></a> [own](#one-thing-two-and-more) [second](#same-1) [named](#named) [file](docs/api.md#grpc)
[elsewhere](https://localhost/nothing) `[code](nowhere.md)` [folder](docs) [reference]

[third](#same-2) [no file](docs/nothing.md) ![no picture](nothing.png) [no anchor](docs/api.md#nothing)
<img src="nothing.svg"> [outside](../..)

[reference]: nothing-at-all.md
"""
    assert dead(text, ROOT / "README.md") == [
        "nothing-at-all.md",
        "#same-2",
        "docs/nothing.md",
        "nothing.png",
        "docs/api.md#nothing",
        "nothing.svg",
        "../..",
    ]
