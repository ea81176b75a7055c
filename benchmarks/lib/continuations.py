"""Known continuations of prompts in a JSON file, for a proposer that must propose the truth among decoys."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path


def continuation_key(prompt_token_ids: Sequence[int], temperature: float, seed: int, adapter: str = "") -> str:
    """Names what decides a continuation: the prompt, the temperature and, above 0, the seed, and the adapter."""
    ids = struct.pack(f"<{len(prompt_token_ids)}I", *prompt_token_ids)
    law = f"{temperature:.4f}:{seed}" if temperature > 0 else "greedy"
    return f"{hashlib.sha256(ids).hexdigest()[:32]}:{law}{':' if adapter else ''}{adapter}"


def write_continuations(path: Path, continuations: Mapping[str, Sequence[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: list(tokens) for key, tokens in continuations.items()}), encoding="utf-8")


def read_continuations(path: Path) -> dict[str, tuple[int, ...]]:
    content: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8"))
    return {key: tuple(tokens) for key, tokens in content.items()}
