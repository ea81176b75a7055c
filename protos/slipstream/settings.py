"""Settings of a service, from flags, environment and a TOML file, resolved once and frozen."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from slipstream.help_text import name_values

USAGE_STATUS = 2
"""Exit status for bad flags, as argparse has it."""


def _split(value: Any) -> Any:
    """Accept "a,b" beside a list; CLI parsing may hand over a list whose items hold commas."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(part.strip() for item in value for part in item.split(",") if part.strip())
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A list of names: `--flag a,b`, `--flag a --flag b`, `PREFIX_FLAG=a,b`, or `flag = ["a", "b"]` in the file."""


Numbers = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split)]
"""A list of whole numbers, written as names are."""


class ServiceSettings(BaseSettings):
    """Base of a service's settings. Flags win over environment, environment over the file, the file over defaults.

    A subclass gives `env_prefix` in its `model_config` and one documented field a setting.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=False,
        cli_hide_none_type=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    config: Path | None = Field(default=None, description="TOML file with any of these settings, by their names")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic passes it by name)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic passes it by name)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources; the file is the one `load` found."""
        sources = (init_settings, env_settings)
        file = init_settings.init_kwargs.get("config") if isinstance(init_settings, InitSettingsSource) else None
        return (*sources, TomlConfigSettingsSource(settings_cls, toml_file=file)) if file else sources


T = TypeVar("T", bound=ServiceSettings)


def load(cls: type[T], prog: str, argv: list[str] | None = None) -> T:
    """Resolve the settings of `prog` from `argv` (default: the process's own), environment and file.

    A bad value ends the process with status 2 and one line that names the flag.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        file = _config_file(cls, arguments)
        given: dict[str, Any] = {"_cli_settings_source": _flags(cls, prog)(args=arguments)}
        return cls(**given) if file is None else cls(config=file, **given)
    except ValidationError as error:
        reason = "; ".join(_explain(cls, dict(detail)) for detail in error.errors())
    except (SettingsError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
    sys.stderr.write(f"{prog}: error: {reason}\n")
    raise SystemExit(USAGE_STATUS)


def _flags(cls: type[ServiceSettings], prog: str) -> CliSettingsSource[argparse.ArgumentParser]:
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(cls, cli_prog_name=prog)
    name_values(source.root_parser, cls.model_fields.items())
    return source


def _prefix(cls: type[ServiceSettings]) -> str:
    return str(cls.model_config.get("env_prefix", "")).upper()


def _config_file(cls: type[ServiceSettings], arguments: list[str]) -> Path | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=os.environ.get(f"{_prefix(cls)}CONFIG"))
    name: str | None = parser.parse_known_args(arguments)[0].config
    if name is None:
        return None
    file = Path(name)
    if not file.is_file():
        raise FileNotFoundError(f"--config: no such file: {file}")
    return file


def _explain(cls: type[ServiceSettings], detail: dict[str, Any]) -> str:
    location = detail["loc"]
    if not location:
        return str(detail["msg"]).removeprefix("Value error, ")
    name = str(location[0])
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name!r}"
    flag = "--" + name.replace("_", "-")
    if detail["type"] == "missing":
        return f"{flag} is required (or {_prefix(cls)}{name.upper()})"
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{flag}: {message[:1].lower()}{message[1:]}, got {detail['input']!r}"
