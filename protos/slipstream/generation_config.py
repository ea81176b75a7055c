"""What a model's generation_config.json says of how to sample, for requests that do not say it themselves.

The fields and the rule are vLLM's (https://docs.vllm.ai, --generation-config): of the file's fields those that name a
sampling parameter count, whatever `do_sample` says, and null counts as unset.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from slipstream.json_file import read_object
from slipstream.rpc.errors import FailedPreconditionError

FILE_NAME: Final = "generation_config.json"
AUTO: Final = "auto"
NONE: Final = "none"
_OFF: Final = (NONE, "vllm")
"""Words for the server's own defaults; the second is vLLM's."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Of a model; None: the file does not say."""

    temperature: float | None = None
    top_k: int | None = None
    """0 keeps all."""
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """The file's max_new_tokens."""

    def given(self) -> dict[str, float | int]:
        """Those that the file states, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


def config_file(model: Path, source: str) -> Path | None:
    """The file that `source` names for the model in a folder; None: there is none.

    source: `auto` for that of the model's own folder, `none` (or vLLM's word for it, `vllm`), or another folder. Raises
    FailedPreconditionError where another folder has no such file.
    """
    if source in _OFF:
        return None
    path = (model if source == AUTO else Path(source).expanduser()) / FILE_NAME
    if path.exists():
        return path
    if source == AUTO:
        return None
    raise FailedPreconditionError(f"{source!r} is neither {AUTO} nor {NONE}, and no folder with a {FILE_NAME}")


def sampling_defaults(file: Path | None) -> SamplingDefaults:
    """What the file says. FailedPreconditionError, naming file and field, for what is no number."""
    content = {} if file is None else read_object(file)
    numbers = {name: _number(file, content, name) for name in ("temperature", "top_p", "min_p", "repetition_penalty")}
    top_k = _integer(file, content, "top_k")
    return SamplingDefaults(
        **numbers, top_k=0 if top_k == -1 else top_k, max_tokens=_integer(file, content, "max_new_tokens")
    )


def _number(file: Path | None, content: dict[str, Any], name: str) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
        raise FailedPreconditionError(f"{file}: {name} must be a number, got {_shown(value)}")
    return float(value)


def _integer(file: Path | None, content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is None:
        return None
    if type(value) is not int or abs(value) >= 2**31:
        raise FailedPreconditionError(f"{file}: {name} must be a whole number below 2^31, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return ascii(value)[:80]
