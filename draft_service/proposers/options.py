"""What follows a proposer's name on the command line, read into its configuration: `KEY=VALUE:KEY=VALUE`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from draft_service.proposers.base import ProposerOptions
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.speculation.reading import NAMES

Config = TypeVar("Config")

ALIASES: dict[str, dict[str, int]] = {
    **{name: {field: 0} for name, field in NAMES.items()},
    "num_speculative_tokens": {"max_depth": 0, "max_nodes": 1},
}
"""Names that users of other engines know: the fields that they set, and what is added to the number. SGLang's count of
draft tokens has the root among them, as ours has; vLLM's count of speculative tokens has not."""

PATHS = ("target", "token_map")
"""Fields that hold paths; there may be none."""


def configured(config: Config, options: ProposerOptions, *, prefix: str = "") -> Config:
    """`config`, a frozen dataclass, with the argument's values in place of the operator's limits and of its own.

    A key is a field's name, before which `prefix` may stand, or one of ALIASES where the fields exist. A home folder's
    `~` in paths is expanded. Raises InvalidArgumentError for unknown or repeated keys and for values that are not of
    the field's type.
    """
    own = {field.name: getattr(config, field.name) for field in fields(config)}  # type: ignore[arg-type] # dataclass
    limits: dict[str, Any] = {
        name: limit for name in ("max_nodes", "max_depth") if (limit := getattr(options, name)) is not None
    }
    if options.token_map and "token_map" in own:
        limits["token_map"] = options.token_map
    values: dict[str, Any] = {}
    for pair in filter(None, options.argument.split(":")):
        key, equals, text = pair.partition("=")
        name = key.removeprefix(prefix)
        targets = ALIASES.get(name, {name: 0})
        if not equals or not targets.keys() <= own.keys() or targets.keys() & values.keys():
            raise _refusal(options, f"{pair!r} must be KEY=VALUE, each KEY once and one of {', '.join(own)}")
        for target, more in targets.items():
            kind = type(own[target])
            try:
                values[target] = kind(text) + more if more else kind(text)
            except ValueError:
                raise _refusal(options, f"{key} must be {kind.__name__}, not {text!r}") from None
    values = limits | values
    values |= {name: str(expanded(values[name], options)) for name in PATHS if values.get(name)}
    try:
        return replace(config, **values)  # type: ignore[type-var] # as above
    except ValueError as error:
        raise _refusal(options, str(error)) from error


def expanded(path: str, options: ProposerOptions) -> Path:
    """The path with its home folder in place of `~`. Raises InvalidArgumentError where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise _refusal(options, f"{path}: {error}") from error


def _refusal(options: ProposerOptions, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"proposer {options.name}: {reason}", field="proposers")
