"""Files, modules and classes of ours that the documentation names in code exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HISTORY = "CHANGELOG.md"
"""Names what was: not looked into."""
SOURCE_ROOTS = (ROOT, ROOT / "kernels", ROOT / "protos", ROOT / "demo_models")
PACKAGES = (
    "benchmarks", "draft_service", "gateway", "launcher", "loadtest", "slipstream_kernels", "training",
    "verify_service",
)  # fmt: skip
SOURCES = (*PACKAGES, "demo_models", "kernels", "protos", "tests")
FOLDERS = (*SOURCES, "deploy", "docs")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w/?")
FILE = re.compile(r"(?<![\w./*{<-])(?:[a-z_]\w*/)*[a-z_]\w*\.(?:py|proto)(?![\w.])")
"""A file without its folder, or with the last of its folders."""
MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.(?!py\b|proto\b)[A-Za-z_]\w*)+(?::\w+)?")
CLASS = re.compile(r"(?<![\w.\-/$])(?:[A-Z]+[a-z]+(?:[A-Z]+[a-z0-9]*)+\b|[A-Z][a-z]+(?=\.[a-z_]+\b))(?!/)")
"""Camel case, or the one word in front of a member."""
DEFINITION = re.compile(r"^\s*(?:class|message|service|enum|rpc) (\w+)", re.MULTILINE)
OUTSIDE = {
    "AutoTokenizer", "LimitNOFILE", "PyTorch",  # others' names
    "json.py", "gateway.py",  # a reader's own that hide modules
    "deploy/.env", "loadtest/out",  # made by commands
}  # fmt: skip


def tokens(text: str) -> list[Token]:
    found = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [each for token in found for each in (token, *(token.children or ()))]


def code(text: str) -> list[str]:
    """Texts of a page that are set as code, in a line or as a block."""
    return [token.content for token in tokens(text) if token.type in {"code_inline", "fence", "code_block"}]


def sources() -> Iterator[Path]:
    for folder in SOURCES:
        yield from (
            path for kind in ("*.py", "*.proto") for path in (ROOT / folder).rglob(kind) if "_pb2" not in path.name
        )


@cache
def files() -> frozenset[str]:
    """Every source file of ours by all the ends of its path, so that `core/request.py` is found, and `request.py`."""
    parts = [path.relative_to(ROOT).parts for path in sources()]
    return frozenset("/".join(each[start:]) for each in parts for start in range(len(each)))


@cache
def classes() -> frozenset[str]:
    """Every class of ours, message, service and call."""
    return frozenset(name for path in sources() for name in DEFINITION.findall(path.read_text(encoding="utf-8")))


@cache
def alerts() -> frozenset[str]:
    """Every alert of ours."""
    return frozenset(
        re.findall(r"alert: (\w+)", (ROOT / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8"))
    )


@cache
def defined(path: Path) -> frozenset[str]:
    """Names that a module defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def module_exists(name: str) -> bool:
    """Whether `package.module`, `package.module.Name` or `package.module:name` is there, members aside."""
    module, _, attribute = name.partition(":")
    parts = module.split(".")
    for root in SOURCE_ROOTS:
        at = root
        for position, part in enumerate(parts):
            rest = [*parts[position + 1 :], *([attribute] if attribute else [])]
            if (at / part).is_dir():
                at = at / part
                continue
            file = (at / part).with_suffix(".py")
            if not file.is_file():
                file, rest = at / "__init__.py", [part, *rest]
            if file.is_file() and (not rest or rest[0] in defined(file)):
                return True
            break
        else:
            if at != root and (not attribute or attribute in defined(at / "__init__.py")):
                return True
    return False


def unknown(text: str) -> list[str]:
    """What a text names in code and the project does not have."""
    found = [each for each in classes_named(text) if each not in classes() | alerts() | OUTSIDE]
    for piece in code(text):
        paths = [each.rstrip("/") for each in PATH.findall(piece)]
        found += [each for each in paths if each not in OUTSIDE and not is_there(each)]
        found += [each for each in FILE.findall(piece) if each not in files() | OUTSIDE | set(paths)]
        found += [each for each in MODULE.findall(piece) if not module_exists(each)]
    return found


def classes_named(text: str) -> list[str]:
    """Names in lines, not in blocks, which are mostly of other languages."""
    return [each for token in tokens(text) if token.type == "code_inline" for each in CLASS.findall(token.content)]


def is_there(path: str) -> bool:
    return any((root / path).exists() for root in SOURCE_ROOTS)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_everything_named_is_there(page: Path) -> None:
    assert unknown(page.read_text(encoding="utf-8")) == []


def test_names_of_nothing_are_found() -> None:
    text = """
`verify_service/core/request.py`, `core/request.py`, `request.py`, `tests/faults`, `kernels/`, `protos/slipstream/v1/`,
`verify_service.core.request`, `draft_service.proposers.base.Proposer`, `draft_service.proposers.ngram:create`,
`python -m benchmarks.kernels.tune_linear`, `slipstream_kernels.models`, verify_service/not/in/code.py, `/proc/PID/fd`,
`verify_service/core/requests.py`, `core/requests.py`, `requests.py`, `tests/mistakes`, `protos/slipstream/v0/`,
`verify_service.core.requests`, `draft_service.proposers.base.Drafter`, `draft_service.proposers.ngram:make`,
`TokenTree`, `Proposer.propose`, `GenerateRequest`, `TokenBush`, `Proposal.propose`, `XiaomiMiMo/MiMo`

```sh
python -m benchmarks.tune_linear --output docs/nothing.md
```
"""
    assert sorted(unknown(text)) == [
        "Proposal",
        "TokenBush",
        "benchmarks.tune_linear",
        "core/requests.py",
        "docs/nothing.md",
        "draft_service.proposers.base.Drafter",
        "draft_service.proposers.ngram:make",
        "protos/slipstream/v0",
        "requests.py",
        "tests/mistakes",
        "verify_service.core.requests",
        "verify_service/core/requests.py",
    ]
