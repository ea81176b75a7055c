"""The part of a model that one rank of tensor parallelism holds."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`: equal parts of heads, of intermediate sizes, those of experts too, and of the vocabulary.

    Sizes are in elements, of this rank's part. Raises CheckpointError where the model does not divide.
    """

    config: ModelConfig
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank is {self.rank} of {self.size}")
        config, experts = self.config, self.config.form.experts
        counts = [("num_key_value_heads", config.num_kv_heads, 1), ("vocab_size", config.vocab_size, 1)]
        if experts is None or not all(experts.layers):
            counts.append(("intermediate_size", config.intermediate_size, 16))
        if experts is not None:
            counts.append(("the intermediate size of experts", experts.size, 16))
            counts.append(("shared_expert_intermediate_size", experts.shared_size, 16))
        for name, count, multiple in counts:
            if count % (self.size * multiple):
                unit = f" in multiples of {multiple}" if multiple > 1 else ""
                raise CheckpointError(f"{name} is {count}, which does not divide among {self.size} ranks{unit}")

    @property
    def heads(self) -> int:
        return self.config.num_heads // self.size

    @property
    def kv_heads(self) -> int:
        return self.config.num_kv_heads // self.size

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def q_size(self) -> int:
        return self.heads * self.config.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.config.head_dim

    @property
    def qkv_size(self) -> int:
        return self.q_size + 2 * self.kv_size

    def intermediate_of(self, layer: int) -> int:
        """See `ModelConfig.intermediate_of`."""
        return self.config.intermediate_of(layer) // self.size

    @property
    def widest_intermediate(self) -> int:
        """The largest `intermediate_of`."""
        return self.config.widest_intermediate // self.size

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.config.vocab_size // self.size


def shard_of(config: ModelConfig, group: RankGroup | None) -> Shard:
    """What of a model this rank holds."""
    return Shard(config) if group is None else Shard(config, group.rank, group.size)
