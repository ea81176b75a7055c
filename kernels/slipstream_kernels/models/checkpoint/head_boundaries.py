"""Which boundaries of its target a head reads, as far as that is known before its weights are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream_kernels.models.capture_layers import usual_boundaries
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, read_json, section, shown

_log = logging.getLogger(__name__)

_MOST_LAYERS = 1 << 10


def expected_boundaries(name: str, argument: str, num_layers: int) -> tuple[int, ...]:
    """Those that a proposer given as NAME[:FOLDER[:KEY=VALUE...]] will likely want of a target; empty: none.

    From its option `boundaries`, the config.json in its folder, and what heads of its name usually read. Whether there
    is such a proposer, and whether the target has such boundaries, is not looked at.
    """
    folder, *options = argument.split(":")
    with suppress(CheckpointError, OSError, RuntimeError, ValueError):
        for key, _, value in (option.partition("=") for option in options):
            if key == "boundaries":
                return tuple(int(part) for part in value.split("-"))
        if name == "eagle3" and folder:
            named = named_boundaries(read_json(Path(folder).expanduser() / "config.json"))
            return named or usual_boundaries(name, num_layers)
    return usual_boundaries(name, num_layers)


def named_boundaries(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Boundaries that a head's config.json names, empty where it names none. CheckpointError for what is no list.

    Each producer counts differently. A list at the top level (speculators, vLLM) holds boundaries. One in eagle_config
    holds outputs of layers where it begins with 1, one less than the boundary; others there are either, depending on
    the engine: SGLang takes all of its Llama's and Qwen's for outputs, but not its DeepSeek's. They are taken for
    boundaries, with a warning.
    """
    name = "eagle_aux_hidden_state_layer_ids"
    nested = section(config, "eagle_config")
    inner: Any = nested.get(name)
    top = config.get(name)
    ids = inner if top is None else top
    if ids is None:
        return ()
    if not isinstance(ids, list) or not 0 < len(ids) <= _MOST_LAYERS or not all(map(_is_layer, ids)):
        raise CheckpointError(f"config.json: {name} is {shown(ids)}, must be a list of layers")
    outputs = top is None and ids[0] == 1
    if ids[0] == 1 and not outputs:
        _log.warning("%s begins with 1: if it was copied from outputs of layers, name the boundaries yourself", name)
    if top is None and not outputs:
        _log.warning("%s in eagle_config is taken for boundaries: if it counts outputs, name the boundaries", name)
    return tuple(each + outputs for each in ids)


def _is_layer(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_LAYERS
