"""The ops that a pass is made of: kernels, their twins in torch, or kernels beside a vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from slipstream_kernels.ops.gpu import (
    add_branch,
    compaction,
    embedding,
    gelu_mul,
    linear,
    logprobs,
    outcome_select,
    prefill_attention,
    prefix_attention,
    rank_sum,
    rms_norm,
    rotary,
    rotary_linear,
    sampling,
    scale_queries,
    silu_mul,
    soft_cap,
    state_rows,
    tail_attention,
    tree_attention,
    tree_handover,
    tree_leaves,
    tree_paths,
    tree_walk,
    word_updates,
)
from slipstream_kernels.ops.gpu.experts import combine_experts, count_awake, expert_linear, group_rows, route_experts
from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import CodeRoom, Fp8Linear, by_weight, on_rows
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products, fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows, quantise_rows_reference
from slipstream_kernels.ops.gpu.library_linear import LibraryGatedLinear, library_linear
from slipstream_kernels.ops.gpu.lora import (
    adapter_rows,
    expand,
    expand_gate,
    expand_rotary,
    shrink,
    shrinking_linear,
)
from slipstream_kernels.ops.gpu.packed.any_linear import Choice, any_gated_linear, any_linear, dense_or_in_steps, never
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight, decode_weight_reference
from slipstream_kernels.ops.gpu.packed.packed_linear import decodes_in_registers

Op = Callable[..., Any]

MODES = ("exact", "fast")


@dataclass(frozen=True, slots=True)
class Ops:
    """Each field is a function of `slipstream_kernels.ops.gpu`, or another of the same signature and meaning.

    Weights of linear layers are bfloat16, or packed, or behind `with_code_room` of e4m3 with activations in e4m3.
    """

    add_branch: Op
    select_outcomes: Op
    combine_experts: Op
    compact_kv: Op
    copy_states: Op
    count_awake: Op
    count_splits: Op
    embed: Op
    expert_linear: Op
    expand: Op
    expand_gate: Op
    expand_rotary: Op
    fp8_products: Op
    gated_linear: Op
    gather_adapter_rows: Op
    gelu_mul: Op
    group_rows: Op
    hand_trees: Op
    linear: Op
    logprobs: Op
    prefill_attention: Op
    prefix_attention: Op
    quantise_rows: Op
    rank_sum: Op
    rms_norm: Op
    rotary_linear: Op
    rotary_write: Op
    route_experts: Op
    sample: Op
    scale_queries: Op
    shrink: Op
    shrinking_linear: Op
    silu_mul: Op
    soft_cap: Op
    tail_attention: Op
    tree_attention: Op
    tree_leaves: Op
    tree_paths: Op
    tree_walk: Op
    write_words: Op


def kernels() -> Ops:
    """The Triton kernels: on an NVIDIA GPU, or in Triton's interpreter."""
    ops = Ops(
        add_branch=add_branch.add_branch,
        select_outcomes=outcome_select.select_outcomes,
        combine_experts=combine_experts.combine_experts,
        compact_kv=compaction.compact_kv,
        copy_states=state_rows.copy_states,
        count_awake=count_awake.count_awake,
        count_splits=outcome_select.count_splits,
        embed=embedding.embed,
        expert_linear=expert_linear.expert_linear,
        expand=expand.expand,
        expand_gate=expand_gate.expand_gate,
        expand_rotary=expand_rotary.expand_rotary,
        fp8_products=fp8_products,
        gated_linear=linear.gated_linear,
        gather_adapter_rows=adapter_rows.gather_adapter_rows,
        gelu_mul=gelu_mul.gelu_mul,
        group_rows=group_rows.group_rows,
        hand_trees=tree_handover.hand_trees,
        linear=linear.linear,
        logprobs=logprobs.logprobs,
        prefill_attention=prefill_attention.prefill_attention,
        prefix_attention=prefix_attention.prefix_attention,
        quantise_rows=quantise_rows,
        rank_sum=rank_sum.rank_sum,
        rms_norm=rms_norm.rms_norm,
        rotary_linear=rotary_linear.rotary_linear,
        rotary_write=rotary.rotary_write,
        route_experts=route_experts.route_experts,
        sample=sampling.sample,
        scale_queries=scale_queries.scale_queries,
        shrink=shrink.shrink,
        shrinking_linear=shrinking_linear.shrinking_linear,
        silu_mul=silu_mul.silu_mul,
        soft_cap=soft_cap.soft_cap,
        tail_attention=tail_attention.tail_attention,
        tree_attention=tree_attention.tree_attention,
        tree_leaves=tree_leaves.tree_leaves,
        tree_paths=tree_paths.tree_paths,
        tree_walk=tree_walk.tree_walk,
        write_words=word_updates.write_words,
    )
    return _of_any_weight(ops, decodes_in_registers, decode_weight)


def twins() -> Ops:
    """The twins in torch, on any device."""
    ops = Ops(
        add_branch=add_branch.add_branch_reference,
        select_outcomes=outcome_select.select_outcomes_reference,
        combine_experts=combine_experts.combine_experts_reference,
        compact_kv=compaction.compact_kv_reference,
        copy_states=state_rows.copy_states_reference,
        count_awake=count_awake.count_awake_reference,
        count_splits=outcome_select.count_splits_reference,
        embed=embedding.embed_reference,
        expert_linear=expert_linear.expert_linear_reference,
        expand=expand.expand_reference,
        expand_gate=expand_gate.expand_gate_reference,
        expand_rotary=expand_rotary.expand_rotary_reference,
        fp8_products=fp8_products_reference,
        gated_linear=linear.gated_linear_reference,
        gather_adapter_rows=adapter_rows.gather_adapter_rows_reference,
        gelu_mul=gelu_mul.gelu_mul_reference,
        group_rows=group_rows.group_rows_reference,
        hand_trees=tree_handover.hand_trees_reference,
        linear=linear.linear_reference,
        logprobs=logprobs.logprobs_reference,
        prefill_attention=prefill_attention.prefill_attention_reference,
        prefix_attention=prefix_attention.prefix_attention_reference,
        quantise_rows=quantise_rows_reference,
        rank_sum=rank_sum.rank_sum_reference,
        rms_norm=rms_norm.rms_norm_reference,
        rotary_linear=rotary_linear.rotary_linear_reference,
        rotary_write=rotary.rotary_write_reference,
        route_experts=route_experts.route_experts_reference,
        sample=sampling.sample_reference,
        scale_queries=scale_queries.scale_queries_reference,
        shrink=shrink.shrink_reference,
        shrinking_linear=shrinking_linear.shrinking_linear_reference,
        silu_mul=silu_mul.silu_mul_reference,
        soft_cap=soft_cap.soft_cap_reference,
        tail_attention=tail_attention.tail_attention_reference,
        tree_attention=tree_attention.tree_attention_reference,
        tree_leaves=tree_leaves.tree_leaves_reference,
        tree_paths=tree_paths.tree_paths_reference,
        tree_walk=tree_walk.tree_walk_reference,
        write_words=word_updates.write_words_reference,
    )
    return _of_any_weight(ops, never, decode_weight_reference)


def _of_any_weight(ops: Ops, in_registers: Choice, decode: Op) -> Ops:
    """Ops of linear layers whose weights may be packed, from those of bfloat16 weights."""
    linear_op = any_linear(ops.linear, in_registers=in_registers, decode=decode)
    return replace(
        ops,
        linear=linear_op,
        gated_linear=any_gated_linear(ops.gated_linear, in_registers=in_registers, decode=decode),
        rotary_linear=dense_or_in_steps(ops.rotary_linear, rotary_linear.in_two_steps(linear_op, ops.rotary_write)),
        shrinking_linear=dense_or_in_steps(ops.shrinking_linear, shrinking_linear.in_two_steps(linear_op, ops.shrink)),
    )


def ops_of_mode(mode: str, device: torch.device, gate_up: torch.Tensor) -> Ops:
    """The ops of a mode on a device. `gate_up` is bfloat16 room for both halves of a
    gated layer, used in fast mode.

    Raises ValueError for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}, supported are {', '.join(MODES)}")
    cuda = device.type == "cuda"
    ops = kernels() if cuda else twins()
    if mode == "exact":
        return ops
    library = replace(
        ops,
        linear=library_linear,
        gated_linear=LibraryGatedLinear(gate_up),
        rotary_linear=rotary_linear.in_two_steps(library_linear, ops.rotary_write),
        shrinking_linear=shrinking_linear.in_two_steps(library_linear, ops.shrink),
    )
    in_registers, decode = (decodes_in_registers, decode_weight) if cuda else (never, decode_weight_reference)
    return _of_any_weight(library, in_registers, decode)


def with_code_room(ops: Ops, room: CodeRoom | None) -> Ops:
    """The same, whose linear layers also take an `Fp8Weight`, with activations that are quantised in `room`, or come in
    codes.
    """
    if room is None:
        return ops
    linear_op = Fp8Linear(room, ops.quantise_rows, ops.fp8_products, ops.linear)
    rotary_op = rotary_linear.in_two_steps(linear_op, ops.rotary_write)
    shrinking_op = shrinking_linear.in_two_steps(linear_op, on_rows(ops.shrink))
    return replace(
        ops,
        linear=linear_op,
        gated_linear=Fp8Linear(room, ops.quantise_rows, ops.fp8_products, ops.gated_linear, gated=True),
        rotary_linear=by_weight(rotary_op, ops.rotary_linear),
        shrinking_linear=by_weight(shrinking_op, ops.shrinking_linear),
    )
