"""What a target's folder says of how prompts are written, by which two of them write alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training.common.atomic_files import MismatchError

_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""All that a prompt's tokens depend on, as far as it is there."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """`folder` of the target; `eos_token_ids` end its answers."""

    folder: Path
    eos_token_ids: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """As JSON has it; equal ones write equal tokens."""
        digest = hashlib.sha256(json.dumps(self.eos_token_ids).encode())
        for name in _FILES:
            file = self.folder / name
            content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
            digest.update(f"{name} {content}\n".encode())
        return {"rendering": digest.hexdigest()}


def check_rendering(recorded: Mapping[str, Any], target: Rendering, folder: Path) -> None:
    """MismatchError unless `folder`, whose index says `recorded` of its model, was written as `target` is prompted."""
    if recorded.get("rendering") != target.document()["rendering"]:
        raise MismatchError(
            f"{folder} was written with another tokenizer, chat template or end of turn than {target.folder} has: "
            "make it again with this model"
        )
