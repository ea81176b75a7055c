"""Which extra of the distribution brings which packages, and what is said where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

DISTRIBUTION: Final = "slipstream-server"
_DEVICE: Final = ("llguidance", "llvmlite", "numba", "numpy", "safetensors", "tokenizers", "torch")
_GATEWAY: Final = ("fastapi", "httptools", "jinja2", "llguidance", "orjson", "tokenizers", "uvicorn")
_PROMPTS: Final = ("datasketch", "detect_secrets", "presidio_analyzer", "py3langid", "pyap", "tokenizers")

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": ("ray",),
    "device": _DEVICE,
    "gateway": _GATEWAY,
    "serve": tuple(dict.fromkeys(_DEVICE + _GATEWAY)),
    "train": tuple(dict.fromkeys((*_DEVICE, *_PROMPTS, "jinja2", "matplotlib", "tensorboard"))),
}
"""What an extra's packages are imported as."""
FAILED: Final = 1
"""Exit status of a program whose packages are not installed."""


class MissingExtraError(ImportError):
    """Packages that an extra brings are not installed. The message says how to install them."""


def require(extra: str, what: str) -> None:
    """MissingExtraError if `what` lacks any package of the extra. Nothing is imported."""
    if missing := _missing(extra):
        raise MissingExtraError(_explain(extra, what, missing))


@contextmanager
def explained(extra: str, what: str) -> Iterator[None]:
    """End the process with one line and status 1 where an import within fails for want of the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = _missing(extra)
        if (error.name or "").partition(".")[0] not in missing:
            raise
        sys.stderr.write(f"{_explain(extra, what, missing)}\n")
        sys.exit(FAILED)


def _missing(extra: str) -> list[str]:
    return [name for name in MODULES[extra] if find_spec(name) is None]


def _explain(extra: str, what: str, missing: list[str]) -> str:
    return f"{what} needs {', '.join(missing)}: pip install '{DISTRIBUTION}[{extra}]'"
