"""The ops that a round is made of: kernels, or their twins in torch."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.gpu.forward import ops_namespace
from slipstream_kernels.models.gpu.forward.ops_namespace import Op, Ops
from slipstream_kernels.ops.gpu import (
    draft_combine,
    draft_expand,
    draft_top_k,
    eagle_input,
    gather_accepted_states,
    gather_norm,
    residual_silu,
    speculator_state,
    truncate_to_accepted,
)


@dataclass(frozen=True, slots=True)
class DraftOps:
    """`layers`: those that a target's passes are made of too."""

    layers: Ops
    draft_combine: Op
    draft_expand: Op
    draft_top_k: Op
    gather_norm: Op
    join_rows: Op
    residual_silu: Op
    settle_text: Op
    speculator_state: Op
    take_states: Op


def kernels() -> DraftOps:
    """The Triton kernels: on an NVIDIA GPU, or in Triton's interpreter."""
    return DraftOps(
        layers=ops_namespace.kernels(),
        draft_combine=draft_combine.draft_combine,
        draft_expand=draft_expand.draft_expand,
        draft_top_k=draft_top_k.draft_top_k,
        gather_norm=gather_norm.gather_norm,
        join_rows=eagle_input.join_rows,
        residual_silu=residual_silu.residual_silu,
        settle_text=truncate_to_accepted.settle_text,
        speculator_state=speculator_state.speculator_state,
        take_states=gather_accepted_states.take_states,
    )


def twins() -> DraftOps:
    """The twins in torch, on any device."""
    return DraftOps(
        layers=ops_namespace.twins(),
        draft_combine=draft_combine.draft_combine_reference,
        draft_expand=draft_expand.draft_expand_reference,
        draft_top_k=draft_top_k.draft_top_k_reference,
        gather_norm=gather_norm.gather_norm_reference,
        join_rows=eagle_input.join_rows_reference,
        residual_silu=residual_silu.residual_silu_reference,
        settle_text=truncate_to_accepted.settle_text_reference,
        speculator_state=speculator_state.speculator_state_reference,
        take_states=gather_accepted_states.take_states_reference,
    )
