"""A layer of experts within a pass on a GPU."""

from __future__ import annotations

import torch

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.gpu.forward.expert_weights import ExpertWeights
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.models.gpu.graph.expert_buffers import ExpertBuffers


def queue_experts(
    ops: Ops,
    form: ExpertForm,
    weights: ExpertWeights,
    x: torch.Tensor,
    slots: torch.Tensor,
    b: ExpertBuffers,
    out: torch.Tensor,
    *,
    layer: int,
    shared: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Queue out = what the experts make of bfloat16 x [rows, hidden] + residual.

    slots: int32 [rows] that rows write, -1 of padding, which wakes no expert. layer: its place among those with
    experts. shared: float32 [rows, hidden], what the expert that computes every row says; None: there is none. out: the
    residual stream, which `residual` may be; or, without one, float32 [rows, hidden], a rank's part. down_bias: the
    weights', or None on ranks that do not add it. norm, normed, eps: see `combine_experts`; normed may be x.
    """
    ops.linear(x, weights.router, b.scores, bias=weights.router_bias)
    weighed = not form.weighs_inputs
    kind = {"normalised": form.normalised, "sigmoid": form.weighs_inputs}
    ids = b.ids[layer]
    ops.route_experts(b.scores, slots, ids, b.weights, experts=form.count, **kind)
    if b.groups is not None:
        ops.group_rows(ids, b.groups, experts=form.count)
    factors = None if weighed else b.weights
    gate = {"gated": True, "limit": form.limit, "bias": weights.gate_up_bias, "factors": factors}
    ops.expert_linear(x, weights.gate_up, b.activated, ids, b.groups, **gate)
    ops.expert_linear(b.activated, weights.down, b.outputs, ids, b.groups, bias=down_bias)
    scores = b.scores[:, form.count] if form.weighs_shared else None
    addends = {"shared": shared, "scores": scores, "residual": residual}
    ops.combine_experts(b.outputs, b.weights, out, **addends, weighed=weighed, norm=norm, normed=normed, eps=eps)
