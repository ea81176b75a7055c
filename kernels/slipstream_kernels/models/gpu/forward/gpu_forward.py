"""One pass over the model: from the plan's arrays on the device to the tokens that are accepted."""

from __future__ import annotations

from typing import Any

import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.device_plan import PlanArrays
from slipstream_kernels.models.gpu.batch.outcome_plan import OutcomeArrays
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.forward.adapters import GpuAdapters
from slipstream_kernels.models.gpu.forward.expert_pass import queue_experts
from slipstream_kernels.models.gpu.forward.expert_weights import ExpertWeights
from slipstream_kernels.models.gpu.forward.head_buffers import HeadBuffers
from slipstream_kernels.models.gpu.forward.kv_store import KVStore
from slipstream_kernels.models.gpu.forward.masked_sampling import DeviceMasks
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, with_code_room
from slipstream_kernels.models.gpu.forward.plain_attention import PlainAttention
from slipstream_kernels.models.gpu.forward.position_tables import PositionTables
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, LayerWeights
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool, PassBuffers
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup
from slipstream_kernels.ops.attention_form import AttentionForm
from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import InputNorm, LayerInput
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.packed.any_linear import LayerWeight
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

Plan = PlanArrays[torch.Tensor]
Adapted = tuple[GpuAdapters, AdapterRows] | None
"""Adapters, and the rows of a pass that have one; None where no row does."""


class GpuForward:
    """Queues the ops of a pass on the current stream. Nothing is allocated and nothing waits, so it can be captured."""

    def __init__(
        self,
        weights: GpuWeights,
        kv: KVStore,
        tables: RequestTables,
        pool: BufferPool,
        positions: PositionTables,
        ops: Ops,
        group: RankGroup | None = None,
        plain: PlainAttention | None = None,
        adapters: GpuAdapters | None = None,
    ) -> None:
        """`plain` serves passes without trees in the place of the ops' attention. `adapters` are those that rows of
        buckets with adapters may have.
        """
        self._weights = weights
        self._config = config = weights.shard.config
        self._kv = kv
        self._tables = tables
        self._pool = pool
        self._positions = positions
        self._attention = config.attention_forms
        self._ops = with_code_room(ops, pool.code_room)
        self._input_norm = InputNorm(ops.rms_norm, pool.code_room)
        self._group = group
        self._plain = plain
        self._adapters = adapters

    def run(self, bucket: Bucket, plan: Plan, layers: int | None = None) -> None:
        """All of a pass: update the tables, compute the rows, decide, and compact what was accepted.

        `layers`: so many of the first alone, and what is between all of them, where no more is wanted than that each
        kernel is met.
        """
        ops, b = self._ops, self._pool.of(bucket)
        tables, scale = self._tables, self._config.form.embed_scale
        ops.write_words(tables.words, plan.updates)
        ops.embed(plan.token_ids, plan.lines, tables.last_tokens, self._weights.embedding, b.x, b.resolved_ids, scale)
        if bucket.has_trees:
            ops.tree_paths(plan.parents, plan.root_rows, b.paths, b.depths)
            if bucket.tiles_only:
                segment_rows = b.columns // self._weights.shard.group
                ops.tree_leaves(plan.parents, plan.root_rows, b.leaves, segment_rows=segment_rows)
        elif self._plain is not None:
            self._plain.of(bucket.without_states).gather()
        adapted: Adapted = None
        if bucket.adapters and self._adapters is not None:
            adapted = self._adapters, self._adapters.gather(plan, tables.adapters, ops)
        for index, layer in enumerate(self._weights.layers):
            self._keep(bucket, b, index)
            if layers is None or index < layers:
                self._layer(bucket, plan, b, index, layer, adapted)
        self._keep_last(bucket, b)
        if b.experts is not None and (form := self._config.form.experts) is not None:
            ops.count_awake(b.experts.ids, b.experts.awake, experts=form.count)
        if bucket.logits:
            self._decide(bucket, plan, b)

    def choose(self, plan: Plan, choices: OutcomeArrays[torch.Tensor], segment_rows: int) -> None:
        """In front of a pass with choices: settle its rows, by what the pass before it has decided."""
        ops, tables = self._ops, self._tables
        ops.write_words(tables.words, plan.updates)  # roots may stand on pages that these bring
        ops.select_outcomes(
            choices.choices,
            choices.nodes,
            self._pool.results,
            tables.page_table,
            self._kv.page_size,
            segment_rows,
            plan.lines,
            plan.token_ids,
            plan.positions,
            plan.write_slots,
            plan.prefix_lengths,
            plan.parents,
            plan.root_rows,
            plan.logit_rows,
            plan.deciding,
            plan.decode_rows,
            plan.segments,
        )
        ops.count_splits(plan.segments, plan.item_offsets)

    def hand(self, choices: OutcomeArrays[torch.Tensor], trees: torch.Tensor) -> None:
        """In front of `choose`: the trees that are drafted on the device, in `trees`; see `hand_trees`."""
        self._ops.hand_trees(trees, choices.choices, choices.nodes, self._pool.results)

    def head(self, x: torch.Tensor, rows: torch.Tensor, b: HeadBuffers) -> None:
        """Logits of rows, int32 [n], of the residual stream behind the last layer; those of -1 are padding."""
        ops, weights = self._ops, self._weights
        ops.rms_norm(x, weights.final_norm, b.head_in, self._config.rms_norm_eps, rows)
        if self._group is None:
            ops.linear(b.head_in, weights.head, b.logits)
        else:
            ops.linear(b.head_in, weights.head, b.part)
            self._group.all_gather(b.parts, b.part)
            b.logits.unflatten(1, (self._group.size, -1)).copy_(b.parts.transpose(0, 1))
        if self._config.form.logit_cap:
            ops.soft_cap(b.logits, self._config.form.logit_cap)

    def _keep(self, bucket: Bucket, b: PassBuffers, boundary: int, state: torch.Tensor | None = None) -> None:
        """Keep the rows' states at a boundary, those in the residual stream unless others are given."""
        if boundary in bucket.boundaries:
            kept = b.states.unflatten(1, (len(bucket.boundaries), -1))
            kept[:, bucket.boundaries.index(boundary)].copy_(b.x if state is None else state)

    def _keep_last(self, bucket: Bucket, b: PassBuffers) -> None:
        layers = len(self._weights.layers)
        self._keep(bucket, b, layers)
        if layers + 1 in bucket.boundaries:
            self._ops.rms_norm(b.x, self._weights.final_norm, b.normed, self._config.rms_norm_eps)
            self._keep(bucket, b, layers + 1, b.normed)

    def _layer(
        self, bucket: Bucket, plan: Plan, b: PassBuffers, index: int, layer: LayerWeights, adapted: Adapted
    ) -> None:
        ops, config, kept = self._ops, self._config, adapted is not None
        normed: LayerInput = b.normed
        keys, values = self._kv.of_layer(index)
        if index == 0 or self._weights.norm_behind_experts(index - 1) is None:
            normed = self._input_norm(b.x, layer.input_norm, b.normed, config.rms_norm_eps, layer.qkv, kept=kept)
        places = plan.positions, plan.write_slots, self._positions.rotary[index]
        norms = {"q_norm": layer.q_norm, "k_norm": layer.k_norm, "eps": config.rms_norm_eps}
        if adapted is None:
            ops.rotary_linear(normed, layer.qkv, *places, b.qkv, b.q, keys, values, bias=layer.qkv_bias, **norms)
        else:
            adapters, rows = adapted
            shrunk = adapters.linear(index, "qkv", normed, layer.qkv, b.qkv, rows, ops, bias=layer.qkv_bias)
            ops.expand_rotary(*shrunk, b.qkv, *places, b.q, keys, values, **norms)
        if (factors := self._positions.factors[index]) is not None:
            ops.scale_queries(b.q, plan.positions, factors)
        self._attend(bucket, plan, b, keys, values, self._attention[index], layer.sinks)
        attended = b.attended.flatten(1)
        self._add(attended, layer.o, layer.o_bias, layer.attention_norm, b, (adapted, index, "o"))
        if layer.experts is not None:
            ops.rms_norm(b.x, layer.post_norm, b.normed, config.rms_norm_eps)
            self._add_experts(layer.experts, index, layer, plan.write_slots, b)
            return
        normed = self._input_norm(b.x, layer.post_norm, b.normed, config.rms_norm_eps, layer.gate_up, kept=kept)
        activated = self._gate(layer, normed, b, adapted, index)
        self._add(activated, layer.down, layer.down_bias, layer.mlp_norm, b, (adapted, index, "down"))

    def _linear(
        self,
        adapted: Adapted,
        index: int,
        name: str,
        x: LayerInput,
        weight: LayerWeight,
        out: torch.Tensor,
        **addends: Any,
    ) -> None:
        """`linear`, and added to its output what the adapters of rows make of x; rows without one are left alone."""
        ops = self._ops
        if adapted is None:
            ops.linear(x, weight, out, **addends)
        else:
            adapters, rows = adapted
            ops.expand(*adapters.linear(index, name, x, weight, out, rows, ops, **addends), out)

    def _add_experts(
        self, weights: ExpertWeights, index: int, layer: LayerWeights, slots: torch.Tensor, b: PassBuffers
    ) -> None:
        """Add what a layer's experts say, the sum of the ranks' parts, to the residual stream."""
        ops, form, shared = self._ops, self._config.form.experts, None
        assert form is not None
        assert b.experts is not None
        if form.shared_size:
            shared, activated = b.shared, b.activated_of(layer.down.shape[1])
            ops.gated_linear(b.normed, layer.gate_up, activated)
            ops.linear(activated, layer.down, shared)
        adds_bias = self._group is None or self._group.rank == 0
        place, more = form.place_of(index), {"shared": shared, "down_bias": weights.down_bias if adds_bias else None}
        eps = self._config.rms_norm_eps
        if self._group is None:
            more |= {"residual": b.x, "norm": self._weights.norm_behind_experts(index), "normed": b.normed}
            queue_experts(ops, form, weights, b.normed, slots, b.experts, b.x, layer=place, eps=eps, **more)
            return
        queue_experts(ops, form, weights, b.normed, slots, b.experts, b.part, layer=place, eps=eps, **more)
        self._group.all_gather(b.parts, b.part)
        ops.rank_sum(b.parts, b.x, b.x)

    def _gate(self, layer: LayerWeights, x: LayerInput, b: PassBuffers, adapted: Adapted, index: int) -> torch.Tensor:
        """The gate is applied to float32 sums: by the layer itself, or, where adapters add to these, behind it."""
        ops, gelu = self._ops, self._config.form.activation == "gelu_tanh"
        activated = b.activated_of(layer.down.shape[1])
        if layer.gate_up_bias is None and not gelu and adapted is None:
            ops.gated_linear(x, layer.gate_up, activated)
            return activated
        gate_up, bias = b.gate_up_of(layer.gate_up.shape[0]), layer.gate_up_bias
        if adapted is not None and not gelu:
            adapters, rows = adapted
            shrunk = adapters.linear(index, "gate_up", x, layer.gate_up, gate_up, rows, ops, bias=bias)
            ops.expand_gate(*shrunk, gate_up, activated)
            return activated
        self._linear(adapted, index, "gate_up", x, layer.gate_up, gate_up, bias=bias)
        gate = ops.gelu_mul if gelu else ops.silu_mul
        gate(gate_up, activated)
        return activated

    def _attend(
        self,
        bucket: Bucket,
        plan: Plan,
        b: PassBuffers,
        keys: KVRows,
        values: KVRows,
        form: AttentionForm,
        sinks: torch.Tensor | None,
    ) -> None:
        if self._plain is not None and not bucket.has_trees:
            assert isinstance(keys, torch.Tensor)
            assert isinstance(values, torch.Tensor)
            self._plain.of(bucket.without_states).run(b.q, keys, values, b.attended)
            return
        ops, page_size, pages = self._ops, self._kv.page_size, self._tables.page_table
        if bucket.tiles_only and bucket.has_trees:
            trees = plan.segments, b.paths, b.depths, b.leaves, plan.write_slots
            more = {"columns": b.columns, "form": form, "sinks": sinks}
            ops.tree_attention(b.q, keys, values, pages, page_size, *trees, b.attended, **more)
        elif not bucket.tiles_only:
            self._attend_in_splits(plan, b, keys, values, form, sinks)
        if len(plan.tiles):
            ops.prefill_attention(b.q, keys, values, pages, page_size, plan.tiles, b.attended, form=form, sinks=sinks)

    def _attend_in_splits(
        self,
        plan: Plan,
        b: PassBuffers,
        keys: KVRows,
        values: KVRows,
        form: AttentionForm,
        sinks: torch.Tensor | None,
    ) -> None:
        """Attention of the rows that have no tile: those that decode come first."""
        ops, page_size, pages = self._ops, self._kv.page_size, self._tables.page_table
        q, partials, out = b.q[: len(plan.decode_rows)], b.partials, b.attended[: len(plan.decode_rows)]
        ops.prefix_attention(
            q,
            keys,
            values,
            pages,
            page_size,
            plan.segments,
            plan.item_offsets,
            partials,
            columns=b.columns,
            form=form,
            depths=b.depths,
        )
        ops.tail_attention(
            q,
            keys,
            values,
            pages,
            page_size,
            plan.lines,
            plan.prefix_lengths,
            b.paths,
            b.depths,
            plan.write_slots,
            plan.decode_rows,
            partials,
            out,
            form=form,
            sinks=sinks,
        )

    def _add(
        self,
        x: torch.Tensor,
        weight: LayerWeight,
        bias: torch.Tensor | None,
        norm: torch.Tensor | None,
        b: PassBuffers,
        adapted: tuple[Adapted, int, str],
    ) -> None:
        """Add a layer's output, the sum of the ranks' parts, to the residual stream. `adapted`: as of `_linear`."""
        ops, eps = self._ops, self._config.rms_norm_eps
        if self._group is None:
            if norm is None:
                self._linear(*adapted, x, weight, b.x, bias=bias, residual=b.x)
            else:
                self._linear(*adapted, x, weight, b.branch, bias=bias)
                ops.add_branch(b.branch, b.x, eps, norm=norm)
            return
        self._linear(*adapted, x, weight, b.part)
        self._group.all_gather(b.parts, b.part)
        if norm is None and bias is None:
            ops.rank_sum(b.parts, b.x, b.x)
        else:
            ops.rank_sum(b.parts, None, b.branch)
            ops.add_branch(b.branch, b.x, eps, bias=bias, norm=norm)

    def _decide(self, bucket: Bucket, plan: Plan, b: PassBuffers) -> None:
        self.head(b.x, plan.logit_rows, HeadBuffers(b.head_in, b.logits, b.logits_part, b.logits_parts))
        self.sample(bucket, plan, b.sampled)
        self._walk(bucket, plan, b, plan.deciding)

    def decide_again(self, bucket: Bucket, plan: Plan, masked: DeviceMasks) -> None:
        """Behind a pass: sample rows under masks, and decide their items by these."""
        b = self._pool.of(bucket)
        self.sample(bucket, plan, b.sampled, masked.chosen, masked.masks)
        if len(masked.deciding):
            self._walk(bucket, plan, b, masked.deciding)

    def sample(
        self,
        bucket: Bucket,
        plan: Plan,
        sampled: torch.Tensor,
        chosen: torch.Tensor | None = None,
        masks: torch.Tensor | None = None,
    ) -> None:
        """Sample a pass's rows, or those `chosen` under `masks`, from its logits: int32 [logits]."""
        b, tables = self._pool.of(bucket), self._tables
        self._ops.sample(
            b.logits,
            plan.logit_rows,
            plan.positions,
            plan.lines,
            b.paths,
            b.depths,
            b.resolved_ids,
            tables.sampling,
            b.workspace,
            sampled,
            chosen,
            masks,
        )

    def _walk(self, bucket: Bucket, plan: Plan, b: PassBuffers, deciding: torch.Tensor) -> None:
        """Follow what was sampled, and keep the keys and values of what is accepted."""
        ops, tables, result = self._ops, self._tables, b.result[: len(deciding)]
        ops.tree_walk(
            b.sampled,
            deciding,
            plan.logit_rows,
            plan.parents,
            b.resolved_ids,
            tables.last_tokens,
            tables.sampling,
            result,
        )
        if bucket.has_trees:
            kv = self._kv
            ops.compact_kv(
                *kv.of_all(),
                result,
                deciding,
                plan.logit_rows,
                plan.write_slots,
                tables.page_table,
                kv.page_size,
            )
