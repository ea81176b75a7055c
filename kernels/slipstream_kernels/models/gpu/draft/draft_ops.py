"""The ops that a round is made of: kernels, or their twins in torch."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.gpu import ops_namespace
from slipstream_kernels.models.gpu.ops_namespace import Op, Ops
from slipstream_kernels.ops.gpu import draft_expand, draft_top_k, gather_norm, join_rows, text_rows


@dataclass(frozen=True, slots=True)
class DraftOps:
    """`layers`: those that a target's passes are made of too."""

    layers: Ops
    draft_expand: Op
    draft_top_k: Op
    gather_norm: Op
    join_rows: Op
    settle_text: Op
    take_states: Op


def kernels() -> DraftOps:
    """The Triton kernels: on an NVIDIA GPU, or in Triton's interpreter."""
    return DraftOps(
        layers=ops_namespace.kernels(),
        draft_expand=draft_expand.draft_expand,
        draft_top_k=draft_top_k.draft_top_k,
        gather_norm=gather_norm.gather_norm,
        join_rows=join_rows.join_rows,
        settle_text=text_rows.settle_text,
        take_states=text_rows.take_states,
    )


def twins() -> DraftOps:
    """The twins in torch, on any device."""
    return DraftOps(
        layers=ops_namespace.twins(),
        draft_expand=draft_expand.draft_expand_reference,
        draft_top_k=draft_top_k.draft_top_k_reference,
        gather_norm=gather_norm.gather_norm_reference,
        join_rows=join_rows.join_rows_reference,
        settle_text=text_rows.settle_text_reference,
        take_states=text_rows.take_states_reference,
    )
