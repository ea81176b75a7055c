"""What the engine benchmark's figures mean: from the times of steps to a row of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.local_engine.local_loop import Arrival
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.forward.expert_weights import ExpertWeights
from slipstream_kernels.models.gpu.forward.packed_layers import room_size
from slipstream_kernels.models.gpu.forward.weights import weight_bytes
from slipstream_kernels.models.gpu.ranks.shard import Shard

Figures = dict[str, float | int | str | None]
"""One row: column name to value. Rows of one table have the same columns."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that a step must read: weights as they lie on a device, all but the embedding and sleeping experts, once,
    and the KV of all contexts.

    weights: but for experts. experts: all of them. share: of a layer's experts, those that a row wakes.
    """

    weights: int
    kv_per_token: int
    experts: int = 0
    share: float = 0.0

    @classmethod
    def of(cls, config: ModelConfig) -> Bytes:
        shard, form = Shard(config), config.form.experts
        read = weight_bytes(shard) - 2 * room_size(shard)
        if not config.tie_word_embeddings:
            read -= 2 * config.vocab_size * config.hidden_size
        mixed = [layer for layer in range(config.num_layers) if config.has_experts(layer)]
        held = (ExpertWeights.empty(shard, layer, "meta") for layer in mixed)
        experts = sum(each.gate_up.nbytes + each.down.nbytes for each in held)
        share = 0.0 if form is None else form.chosen / form.count
        return cls(read - experts, 4 * config.num_layers * config.kv_size, experts, share)

    def step(self, batch: int, context: int, rows: int = 1) -> int:
        """Of so many requests with so many rows each, which choose experts independently, in the mean."""
        awake = round(self.experts * (1 - (1 - self.share) ** (batch * rows)))
        return self.weights + awake + batch * context * self.kv_per_token


def steps_figures(arrivals: Sequence[Arrival], bytes_read: int) -> Figures:
    """Figures of consecutive steps: times between arrivals in milliseconds, tokens over all of them by the second.

    The bandwidth is `bytes_read` over the median step; its floor is these bytes over what the memory yields.
    """
    times = sorted((b.at - a.at) * 1e3 for a, b in pairwise(arrivals))
    seconds = arrivals[-1].at - arrivals[0].at
    median = statistics.median(times)
    return {
        "step ms": median,
        "mean ms": statistics.fmean(times),
        "p90 ms": times[int(0.9 * (len(times) - 1))],
        "tokens/s": sum(arrival.tokens for arrival in arrivals[1:]) / seconds,
        "TB/s": bytes_read / median / 1e9,
        "GB": bytes_read / 1e9,
        "steps": len(times),
    }


def drafted_figures(arrivals: Sequence[Arrival]) -> Figures:
    """Drafted nodes a step, and how many steps had any: evidence that what was timed was what was wanted."""
    drafted = [arrival.drafted for arrival in arrivals[1:]]
    return {"nodes a step": statistics.fmean(drafted), "steps with trees": sum(count > 0 for count in drafted)}


def side_by_side(tables: dict[str, list[Figures]], keys: Sequence[str], value: str) -> list[Figures]:
    """One column of several tables beside one another, rows matched by `keys`, and each over the first table's."""
    names = list(tables)
    found = {name: {tuple(row[key] for key in keys): row[value] for row in rows} for name, rows in tables.items()}
    result: list[Figures] = []
    for row in tables[names[0]]:
        key = tuple(row[each] for each in keys)
        values = [found[name].get(key) for name in names]
        line: Figures = dict(zip(keys, key, strict=True))
        line |= {f"{name} {value}": found[name].get(key) for name in names}
        for name, other in zip(names[1:], values[1:], strict=True):
            line[f"{names[0]} / {name}"] = _ratio(values[0], other)
        result.append(line)
    return result


def _ratio(value: float | str | None, other: float | str | None) -> float | None:
    if isinstance(value, int | float) and isinstance(other, int | float) and other:
        return value / other
    return None
