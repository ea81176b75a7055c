"""Sizes of a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a Llama-style causal language model with tied embeddings."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def parameters(self) -> int:
        """Number of parameters, the tied embedding counted once."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        return self.vocab_size * self.hidden_size + self.layers * layer + self.hidden_size


@dataclass(frozen=True, slots=True)
class MixtureShape(ModelShape):
    """Dimensions of a model whose feed-forward networks are `experts` of `intermediate_size` each, as Qwen3-MoE's.

    A token is computed by `experts_per_token` of them.
    """

    experts: int = 8
    experts_per_token: int = 2

    @property
    def parameters(self) -> int:
        """Of all experts, routers and norms of heads included."""
        others = (self.experts - 1) * 3 * self.hidden_size * self.intermediate_size
        layer = others + self.experts * self.hidden_size + 2 * self.head_dim
        return super(MixtureShape, self).parameters + self.layers * layer

    @property
    def active_parameters(self) -> int:
        """Of which one token makes use."""
        idle = (self.experts - self.experts_per_token) * 3 * self.hidden_size * self.intermediate_size
        return self.parameters - self.layers * idle
