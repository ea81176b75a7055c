"""What a service's flags, environment and file will tell it, read before it starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ToldSettings:
    """Of the service named `verify`, `draft` or `gateway`."""

    service: str
    arguments: Sequence[str]
    environment: Mapping[str, str]

    def get(self, name: str) -> str:
        """The value of a flag without its dashes, else of its environment variable, else of the file; else nothing."""
        return self._told(name) or self._written().get(name.replace("-", "_"), "")

    def _told(self, name: str) -> str:
        flag, value = f"--{name}", ""
        for index, argument in enumerate(self.arguments):
            if argument == flag and index + 1 < len(self.arguments):
                value = self.arguments[index + 1]
            elif argument.startswith(f"{flag}="):
                value = argument.removeprefix(f"{flag}=")
        return value or self.environment.get(f"SLIPSTREAM_{self.service.upper()}_{name.upper().replace('-', '_')}", "")

    def _written(self) -> dict[str, str]:
        """A file that cannot be read is the service's to complain of."""
        try:
            content = tomllib.loads(Path(self._told("config")).read_text()) if self._told("config") else {}
        except (OSError, ValueError):
            return {}
        return {name: str(value) for name, value in content.items() if isinstance(value, str | int)}
