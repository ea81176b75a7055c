"""What an operator may want to know of a checkpoint as it is loaded: where it is served otherwise than it says."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import is_tied
from slipstream_kernels.models.checkpoint.text_part import OTHER_PREFIXES, has_other_parts, read_text_fields
from slipstream_kernels.models.checkpoint.weight_file import open_weights
from slipstream_kernels.models.checkpoint.weight_loader import stored_shapes, used_names, weight_files

_log = logging.getLogger(__name__)

_WIDER = {"F64": "float64", "F32": "float32", "F16": "float16"}
"""Types whose numbers bfloat16 cannot hold."""


def tell(folder: Path, config: ModelConfig) -> None:
    """Write a line for each thing that there is to say. Raises CheckpointError."""
    for line in notices(folder, config):
        _log.warning("%s: %s", folder, line)


def notices(folder: Path, config: ModelConfig) -> list[str]:
    """What there is to say of the model in `folder`, a line each. Raises CheckpointError."""
    fields = read_text_fields(folder)
    lines = [] if config.quantisation is None else list(config.quantisation.notices)
    if is_tied(fields) and not config.tie_word_embeddings:
        lines.append("config.json ties lm_head.weight to the embedding, but the folder has another one, which is used")
    if left := _other_parts(folder, config):
        lines.append(f"{left} tensors of parts that are not text are left out: text alone is read and written")
    if rounded := _rounded(folder, config):
        lines.append(f"{rounded} are rounded to bfloat16, in which weights are held")
    return lines


def _other_parts(folder: Path, config: ModelConfig) -> int:
    """How many tensors parts that are not text have."""
    count = 0
    for path in weight_files(folder) if has_other_parts(config.family) else ():
        with open_weights(path) as file:
            count += sum(name.startswith(OTHER_PREFIXES) for name in file.names)
    return count


def _rounded(folder: Path, config: ModelConfig) -> str:
    """How many tensors are of which wider types; empty where none is."""
    types: Counter[str] = Counter()
    held = {name for name, _ in stored_shapes(config)}  # scales keep their types
    for path in weight_files(folder):
        with open_weights(path) as file:
            names = held.intersection(used_names(config, file.names))
            types.update(_WIDER[dtype] for dtype in map(file.dtype, names) if dtype in _WIDER)
    return " and ".join(f"{count} tensors of {name}" for name, count in sorted(types.items()))
