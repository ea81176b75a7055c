"""A mixture of experts for training; parameter names are those of Hugging Face's Qwen3MoeForCausalLM."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.common.model import Attention, CausalLM, GatedMLP, Layer, Linear, Mask, Norm, attend, rotate
from training.common.model_shape import MixtureShape


class NormedAttention(Attention):
    """Grouped-query attention whose queries and keys are normed by head before they are rotated."""

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__(shape)
        self.q_norm = Norm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.rms_norm_eps)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Attention."""
        heads, kv_heads, size = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)).to(x.dtype)
        joined = F.linear(x, weight).view(*x.shape[:-1], heads + 2 * kv_heads, size).transpose(1, 2)
        q, k, v = joined.split((heads, kv_heads, kv_heads), dim=1)
        return rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin), v


class SparseMLP(nn.Module):
    """A router and its experts.

    All experts are computed for all tokens, and those that a token does not have count nothing: with few and small
    experts that is one wide product each way, of fixed shapes.
    """

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__()
        self.shape = shape
        self.gate = Linear(shape.hidden_size, shape.experts)
        self.experts = nn.ModuleList(GatedMLP(shape) for _ in range(shape.experts))

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of experts, float32 [..., experts], which add up to 1 and are 0 but for those that a token has.

        Beside them what `balance` of them is, float32, a scalar.
        """
        scores = self.gate(x).float().softmax(dim=-1)
        best, chosen = scores.topk(self.shape.experts_per_token, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best / best.sum(dim=-1, keepdim=True))
        return weights, balance(scores, weights)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """What experts say of x [..., hidden], added up by their weights [..., experts]."""
        experts = cast(list[GatedMLP], list(self.experts))
        read = torch.cat([each.gate_proj.weight for each in experts] + [each.up_proj.weight for each in experts])
        gate, up = F.linear(x, read.to(x.dtype)).chunk(2, dim=-1)
        inner = (F.silu(gate) * up).unflatten(-1, (self.shape.experts, -1)) * weights.to(x.dtype)[..., None]
        write = torch.cat([each.down_proj.weight for each in experts], dim=1).to(x.dtype)
        return F.linear(inner.flatten(-2), write)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, self.route(x)[0])


def balance(scores: Tensor, weights: Tensor) -> Tensor:
    """1 where all experts have equally many tokens, more where they have not (arXiv 2101.03961, section 2.2).

    scores, weights: [..., experts], the router's softmax and the weights of the experts that were chosen.
    """
    experts = scores.shape[-1]
    share = (weights > 0).float().flatten(0, -2).mean(dim=0)
    share = share / share.sum()
    return experts * (share * scores.flatten(0, -2).mean(dim=0)).sum()


class MixtureLayer(Layer):
    """One pre-norm decoder layer with experts."""

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__(shape)
        self.self_attn = NormedAttention(shape)
        self.mlp: SparseMLP = SparseMLP(shape)  # type: ignore[assignment]  # in place of a GatedMLP

    def routed(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, with what the router says: see `SparseMLP.route`."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        x = x + self.self_attn.output(attend(q, k, v, mask))
        normed = self.post_attention_layernorm(x)
        weights, uneven = self.mlp.route(normed)
        return x + self.mlp.mix(normed, weights), weights, uneven


class MixtureLM(CausalLM):
    """The language model; see CausalLM."""

    shape: MixtureShape

    def __init__(self, shape: MixtureShape, dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.model.layers = nn.ModuleList(MixtureLayer(shape) for _ in range(shape.layers))

    def balanced(self, tokens: Tensor, mask: Mask = None) -> tuple[Tensor, Tensor]:
        """Logits [B, T, vocab], and the mean of the routers' balance."""
        hidden, routes = self._routed(tokens, mask)
        return self.logits(hidden), torch.stack([uneven for _, uneven in routes]).mean()

    @torch.no_grad()
    def shares(self, tokens: Tensor, mask: Mask = None) -> Tensor:
        """Part of the places of tokens [B, T] that each expert has, float32 [layers, experts]; a row adds up to 1."""
        _, routes = self._routed(tokens, mask)
        used = torch.stack([(weights > 0).float().flatten(0, -2).mean(dim=0) for weights, _ in routes])
        return used / self.shape.experts_per_token

    def _routed(self, tokens: Tensor, mask: Mask) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Normed final hidden states [B, T, hidden], and what each layer's router says."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x, routes = self.embed(tokens), []
        for layer in cast(list[MixtureLayer], self.layers):
            x, weights, uneven = layer.routed(x, cos, sin, mask)
            routes.append((weights, uneven))
        return cast(Tensor, self.model.norm(x)), routes
