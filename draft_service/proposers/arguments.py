"""What follows a proposer's name on the command line, read into its configuration: `KEY=VALUE:KEY=VALUE`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from draft_service.proposers.base import ProposerOptions
from slipstream.rpc.errors import InvalidArgumentError

Config = TypeVar("Config")


def configured(config: Config, options: ProposerOptions, *, prefix: str = "") -> Config:
    """`config`, a frozen dataclass, with the argument's values and the operator's limits in place of its own.

    A key is a field's name; `prefix` may stand before it. Raises InvalidArgumentError for unknown or repeated keys and
    for values that are not of the field's type.
    """
    own = {field.name: getattr(config, field.name) for field in fields(config)}  # type: ignore[arg-type] # dataclass
    values: dict[str, Any] = {
        name: limit for name in ("max_nodes", "max_depth") if (limit := getattr(options, name)) is not None
    }
    given: set[str] = set()
    for pair in filter(None, options.argument.split(":")):
        key, equals, text = pair.partition("=")
        name = key.removeprefix(prefix)
        if not equals or name not in own or name in given:
            raise _refusal(options, f"{pair!r} must be KEY=VALUE, each KEY once and one of {', '.join(own)}")
        given.add(name)
        try:
            values[name] = type(own[name])(text)
        except ValueError:
            raise _refusal(options, f"{key} must be {type(own[name]).__name__}, not {text!r}") from None
    try:
        return replace(config, **values)  # type: ignore[type-var] # as above
    except ValueError as error:
        raise _refusal(options, str(error)) from error


def _refusal(options: ProposerOptions, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"proposer {options.name}: {reason}", field="proposers")
