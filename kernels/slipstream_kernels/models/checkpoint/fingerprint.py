"""Identity of a model in a Hugging Face folder with safetensors, without reading its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from slipstream_kernels.models.checkpoint.config_fields import MOST_JSON_BYTES, CheckpointError, read_bounded
from slipstream_kernels.models.checkpoint.weight_file import header_size, weight_files

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_MOST_TOKENIZER_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """sha256 digests in hexadecimal. Equal `tokenizer` digests mean equal token ids."""

    model: str
    tokenizer: str


def fingerprint(folder: Path, *, fp8_activations: bool = False) -> Fingerprint:
    """Identity of a model: its config, tokenizer and the headers (names, types, shapes) of its weights.

    With activations in e4m3 another function of the tokens is served, which is another model.
    """
    tokenizer = hashlib.sha256()
    for path in (folder / name for name in _TOKENIZER_FILES):
        if path.exists():
            tokenizer.update(path.name.encode() + b"\0" + read_bounded(path, _MOST_TOKENIZER_BYTES))
    model = hashlib.sha256(tokenizer.digest())
    model.update(read_bounded(folder / "config.json", MOST_JSON_BYTES))
    for path in weight_files(folder):
        size = 8 + header_size(path)
        try:
            with path.open("rb") as file:
                model.update(path.name.encode() + b"\0" + file.read(size))
        except OSError as error:
            raise CheckpointError(f"{path}: {error}") from error
    if fp8_activations:
        model.update(b"\0activations in e4m3")
    return Fingerprint(model=model.hexdigest(), tokenizer=tokenizer.hexdigest())
