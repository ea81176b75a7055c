"""The sizes of layers of experts on the CPU, and of their buffers, by name in `expert_layers`."""

from __future__ import annotations

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.ops.experts.grouping import ITEM, most_items
from slipstream_kernels.ops.experts.routing import kind_of_weights
from slipstream_kernels.ops.linear import padded


def expert_sizes(form: ExpertForm) -> dict[str, int]:
    """Of `expert_layers.SIZES`."""
    return {
        "experts": form.count,
        "experts_chosen": form.chosen,
        "expert_weights_kind": kind_of_weights(normalised=form.normalised, sigmoid=form.weighs_inputs),
        "expert_inputs_weighed": form.weighs_inputs,
        "expert_size": form.size,
        "expert_stride": padded(2 * form.size),
        "router_stride": padded(form.scores),
        "shared_size": form.shared_size,
        "shared_stride": padded(2 * form.shared_size),
    }


def expert_words(form: ExpertForm, hidden: int, rows: int) -> dict[str, int]:
    """Words of four bytes of each of `expert_layers.BUFFERS`, for so many rows."""
    pairs = rows * form.chosen
    return {
        "scores": rows * padded(form.scores),
        "expert_ids": pairs,
        "expert_weights": pairs,
        "expert_starts": form.count,
        "expert_places": pairs,
        "expert_items": most_items(pairs, form.count) * ITEM,
        "expert_in": pairs * hidden,
        "expert_gate_up": pairs * padded(2 * form.size),
        "expert_activated": pairs * form.size,
        "expert_out": pairs * padded(hidden),
        "experts_awake": 1,
    }
