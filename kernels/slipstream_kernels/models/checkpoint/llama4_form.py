"""What config.json says of a Llama-4's attention, beside what all models have.

Source: transformers, models/llama4/configuration_llama4.py and modeling_llama4.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, flag, layer_names, number, shown, size
from slipstream_kernels.ops.query_temperature import QueryTemperature

LLAMA4 = ("llama4", "llama4_text")
"""Its `model_type`, with parts beside that which is text and without."""
_CHUNKED = "chunked_attention"

_Fields = Mapping[str, Any]


def still_layers(fields: _Fields, layers: int) -> tuple[bool, ...]:
    """Layers whose heads do not turn: those of 0 in `no_rope_layers`, which lists the layers that do turn as 1."""
    value = fields.get("no_rope_layers")
    if value in (None, []):
        interval = size(fields, "no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval == 0 for layer in range(layers))
    if not isinstance(value, list) or len(value) != layers or any(each not in (0, 1) for each in value):
        raise CheckpointError(f"config.json: no_rope_layers is {shown(value)}, must be a list of {layers}, each 0 or 1")
    return tuple(not each for each in value)


def read_chunks(fields: _Fields, still: tuple[bool, ...]) -> tuple[int, tuple[bool, ...]]:
    """Positions of a chunk, 0 where a row sees all, and the layers that have chunks: those that turn, unless named."""
    kinds = layer_names(fields, "layer_types", len(still), ("full_attention", _CHUNKED))
    chunked = tuple(not each for each in still) if kinds is None else tuple(kind == _CHUNKED for kind in kinds)
    none = "attention_chunk_size" in fields and fields["attention_chunk_size"] is None
    return 0 if none else size(fields, "attention_chunk_size", 8192), chunked


def read_temperature(fields: _Fields) -> QueryTemperature | None:
    """Of layers whose heads do not turn; None: queries are as they are. A number in the place of the flag is one."""
    name = "attn_temperature_tuning"
    value = fields.get(name)
    if not (value is None or type(value) in (bool, int)):
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be true or false")
    if value is not None and not value:
        return None
    return QueryTemperature(size(fields, "floor_scale", 8192), number(fields, "attn_scale", 0.1))


def normalises_heads(fields: _Fields) -> bool:
    """Whether queries and keys that turn are normalised by head, without weights."""
    return fields.get("use_qk_norm") is None or flag(fields, "use_qk_norm")
