"""A Llama-style causal language model for training; parameter names are those of Hugging Face's LlamaForCausalLM."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from training.common.model_shape import ModelShape

Mask = BlockMask | Tensor | None


def rope_tables(shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [max_positions, head_dim / 2] (RoFormer, arXiv 2104.09864)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.outer(torch.arange(shape.max_positions, dtype=torch.float64), shape.rope_theta**-half)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., positions, head_dim], whose halves hold the pairs, by tables [..., positions, head_dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Causal attention, q [B, heads, T, D] over k, v [B, kv_heads, T, D].

    `mask` None is plain causal; a boolean tensor [B, 1, T, T] or a BlockMask says which keys a query sees.
    """
    if isinstance(mask, BlockMask):
        attended: Tensor = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return attended
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


class Linear(nn.Linear):
    """A bias-free linear layer whose float32 weight is cast to the input's dtype."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """RMSNorm computed in float32 (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = Linear(shape.hidden_size, shape.heads * shape.head_dim)
        self.k_proj = Linear(shape.hidden_size, shape.kv_heads * shape.head_dim)
        self.v_proj = Linear(shape.hidden_size, shape.kv_heads * shape.head_dim)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.hidden_size)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, heads, T, D] and k, v [B, kv_heads, T, D] of x [B, T, hidden], q and k rotated."""
        heads, kv_heads, size = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)).to(x.dtype)
        joined = F.linear(x, weight).view(*x.shape[:-1], heads + 2 * kv_heads, size).transpose(1, 2)
        q, k, v = joined.split((heads, kv_heads, kv_heads), dim=1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def output(self, attended: Tensor) -> Tensor:
        """Project attended values [B, heads, T, D] back to [B, T, hidden]."""
        return cast(Tensor, self.o_proj(attended.transpose(1, 2).flatten(2)))


class GatedMLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.cat((self.gate_proj.weight, self.up_proj.weight)).to(x.dtype)
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        return cast(Tensor, self.down_proj(F.silu(gate) * up))


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Everything after attention."""
        x = x + self.self_attn.output(attended)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        return self.finish(x, attend(q, k, v, mask))


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class CausalLM(nn.Module):
    """The language model; the head is the transposed embedding.

    The residual stream is computed in `dtype`, parameters keep theirs.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.model = Decoder(shape)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def layers(self) -> list[Layer]:
        return cast(list[Layer], list(self.model.layers))

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.model.embed_tokens.weight).to(self.dtype)

    def hidden(self, tokens: Tensor, mask: Mask = None) -> Tensor:
        """Normed final hidden states [B, T, hidden] of token ids int64 [B, T]."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return cast(Tensor, self.model.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of normed hidden states, in their dtype."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def float_logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 [..., vocab], multiplied in float32, so that ties are rare."""
        return F.linear(hidden.float(), self.model.embed_tokens.weight.float())

    def forward(self, tokens: Tensor, mask: Mask = None) -> Tensor:
        return self.logits(self.hidden(tokens, mask))


def initialise(model: CausalLM, seed: int) -> None:
    """Uniform matrices of variance 1/(4 fan-in), zero for those that write to the residual stream; small embedding."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            fresh = torch.zeros(parameter.shape)
        elif "embed_tokens" in name:
            fresh = torch.randn(parameter.shape, generator=generator) * 0.02
        elif parameter.ndim == 2:
            bound = (0.75 / parameter.shape[1]) ** 0.5
            fresh = (torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound
        else:
            fresh = torch.ones(parameter.shape)
        parameter.data.copy_(fresh)
