"""Weights of a draft head on a device, as its passes read them: EAGLE-1, EAGLE-3 and single MTP layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up


@dataclass(frozen=True, slots=True)
class HeadLayerWeights:
    """bfloat16, contiguous. Optional tensors are None where a layer has none."""

    input_norm: torch.Tensor | None
    """[hidden], of what queries, keys and values are made of; None in layers that read what is joined"""
    qkv: torch.Tensor
    """[q + 2 kv, width]: rows of queries, keys, values"""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    """[head_dim]"""
    o: torch.Tensor
    """[hidden, q]"""
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    """[2 intermediate, hidden], in the order of ops/gpu/gate_up.py"""
    down: torch.Tensor
    """[hidden, intermediate]"""


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """bfloat16, contiguous, but for `ids`. Optional tensors are None where a head has none.

    fused: fc reads the target's states, and layer 0 embedding and state side by side (EAGLE-3); else fc joins embedding
    and state (EAGLE-1, MTP). post_norm: children take the state after the final norm. residual_normed: layer 0's
    residual is the normalised state, of fused heads.
    """

    fused: bool
    post_norm: bool
    residual_normed: bool
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    num_states: int
    embedding: torch.Tensor
    """[vocab, hidden]"""
    head: torch.Tensor
    """[entries, hidden]"""
    ids: torch.Tensor | None
    """int32 [entries], the target's id of each entry; None where both are the same"""
    fc: torch.Tensor
    """[hidden, states * target hidden], or [hidden, hidden + target hidden] unless `fused`"""
    fc_bias: torch.Tensor | None
    input_norm: torch.Tensor | None
    """[states * target hidden], in front of fc"""
    fc_norms: tuple[torch.Tensor, ...]
    """[target hidden] each, of one state in front of fc"""
    embedding_norm: torch.Tensor | None
    state_norm: torch.Tensor | None
    """of what is joined"""
    layers: tuple[HeadLayerWeights, ...]
    final_norm: torch.Tensor | None

    def tensors(self) -> Iterator[torch.Tensor]:
        """All of them."""
        values = [getattr(self, entry.name) for entry in fields(self)]
        values += [getattr(layer, entry.name) for layer in self.layers for entry in fields(layer)]
        yield from (value for value in (*values, *self.fc_norms) if isinstance(value, torch.Tensor))

    @property
    def nbytes(self) -> int:
        """Bytes, what is shared counted once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self.tensors()}.values())

    @property
    def pass_bytes(self) -> int:
        """Bytes that a pass over nodes reads, scores included."""
        matrices = [self.head] + ([] if self.fused else [self.fc])
        for layer in self.layers:
            matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
        return sum(matrix.nbytes for matrix in matrices)


def gate_up_of(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[2 n, hidden] of two matrices [n, hidden]. Raises ValueError unless n is a multiple of 8."""
    return interleave_gate_up(torch.cat([gate, up]))


def random_eagle3(
    *,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    entries: int,
    num_states: int = 3,
    device: torch.device | str,
    seed: int = 0,
) -> EagleWeights:
    """An EAGLE-3 head of random weights whose activations are of order one, and a random map of its vocabulary."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        weight = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        return weight.normal_(generator=generator).mul_(scale * columns**-0.5)

    def norm() -> torch.Tensor:
        return torch.empty(hidden, dtype=torch.bfloat16, device=device).normal_(1, 0.1, generator=generator)

    layer = HeadLayerWeights(
        input_norm=None,
        qkv=normal((heads + 2 * kv_heads) * head_dim, 2 * hidden),
        qkv_bias=None,
        q_norm=None,
        k_norm=None,
        o=normal(hidden, heads * head_dim),
        post_norm=norm(),
        gate_up=normal(2 * intermediate, hidden),
        down=normal(hidden, intermediate),
    )
    ids = torch.randperm(vocab, generator=generator, device=device)[:entries].sort().values
    return EagleWeights(
        fused=True,
        post_norm=False,
        residual_normed=False,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=1e-5,
        num_states=num_states,
        embedding=normal(vocab, hidden, hidden**0.5),
        head=normal(entries, hidden, 3.0),
        ids=ids.to(torch.int32),
        fc=normal(hidden, num_states * hidden),
        fc_bias=None,
        input_norm=None,
        fc_norms=(),
        embedding_norm=norm(),
        state_norm=norm(),
        layers=(layer,),
        final_norm=norm(),
    )
