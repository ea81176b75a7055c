"""The files of deploy/ as programs read them: Compose's variables, and the stages of the Dockerfile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])((?:[^${}]|\$\{[^{}]*\})*))?\}")


def substituted(text: str, values: Mapping[str, str]) -> str:
    """The text with `${NAME}`, `${NAME:-default}`, `${NAME-default}` and `${NAME:?error}` filled in."""

    def value(match: re.Match[str]) -> str:
        name, operator, other = match[1], match[2] or "", match[3] or ""
        if values.get(name) or (name in values and not operator.startswith(":")):
            return values[name]
        assert "?" not in operator, f"{name}: {other}"
        return substituted(other, values)

    return VARIABLE.sub(value, text)


def compose(file: str = "docker-compose.yml", **values: str) -> dict[str, Any]:
    """A compose file with its variables filled in."""
    given = {"SLIPSTREAM_ATTACH_TOKEN": "a-secret-of-this-test", **values}

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        if isinstance(node, list):
            return [filled(value) for value in node]
        return substituted(node, given) if isinstance(node, str) else node

    return filled(yaml.safe_load((DEPLOY / file).read_text()))


def variables(file: str) -> set[str]:
    """Names of the variables of a compose file."""
    return set(re.findall(r"\$\{(\w+)", (DEPLOY / file).read_text()))


@dataclass
class Stage:
    """A stage of the Dockerfile: what it starts from, and its instructions with what follows each of them."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    @property
    def mounted(self) -> set[str]:
        """Stages whose files its commands read."""
        return {name for rest in self.all("RUN") for name in re.findall(r"from=([\w-]+)", rest)}


def stages(device: str = "cpu") -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, Stage] = {}
    stage = Stage("")
    for line in text.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            stage = found[name] = Stage(base.replace("${DEVICE}", device))
        elif instruction and instruction != "#":
            stage.instructions.append((instruction, rest))
    return found


def ancestry(target: str, device: str = "cpu") -> list[Stage]:
    """A stage and those that it starts from, in order."""
    found, line = stages(device), []
    while target in found:
        line.append(found[target])
        target = found[target].base
    return line


def entrypoint(service: Mapping[str, Any]) -> list[str]:
    """What a service runs before its command: its own, or its image's."""
    return service.get("entrypoint") or json.loads(stages()[service["build"]["target"]].all("ENTRYPOINT")[-1])
