"""What is extracted, and on what."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

CUT, DROP = "cut", "drop"
CPU_ROWS, CUDA_ROWS = 256, 2048


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """Everything that decides the states, beside model and sequences. Raises ValueError.

    `boundaries` are kept side by side in this order; none stands for `default_boundaries`. Sequences of more than
    `max_tokens` tokens, 0 for the model's context, are cut there or dropped, as `longer` says.
    """

    boundaries: tuple[int, ...] = ()
    max_tokens: int = 0
    longer: str = CUT

    def __post_init__(self) -> None:
        if self.longer not in (CUT, DROP):
            raise ValueError(f"longer is {self.longer!r}, must be {CUT} or {DROP}")
        if self.max_tokens < 0:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be 0 or more")

    def resolved(self, config: ModelConfig) -> FeatureSettings:
        """With nothing left to the model. Raises ValueError where the model has not what is asked for."""
        known = boundaries_of(config.num_layers)
        boundaries = self.boundaries or default_boundaries(config.num_layers)
        if len(set(boundaries)) != len(boundaries) or not set(boundaries) <= set(known):
            raise ValueError(f"boundaries are {list(boundaries)}, must be different ones of 0 to {known[-1]}")
        if self.max_tokens > config.max_context:
            raise ValueError(f"max_tokens is {self.max_tokens}, the model's context is {config.max_context}")
        return FeatureSettings(boundaries, self.max_tokens or config.max_context, self.longer)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the passes run on. On one kind of device none of it changes a state.

    `rows` of a pass, 0 for as many as serving computes in one; `threads` matter on the CPU, `memory_utilization` on a
    GPU. Raises ValueError.
    """

    device: str = "cpu"
    threads: int = 2
    rows: int = 0
    memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device is {self.device!r}, must be cpu, cuda or cuda:N")
        if not 0 <= self.rows <= 2**16:
            raise ValueError(f"rows are {self.rows}, must be from 0 to {2**16}")

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def pass_rows(self) -> int:
        return self.rows or (CPU_ROWS if self.on_cpu else CUDA_ROWS)


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """Those that EAGLE-3 reads unless told otherwise, 2, N // 2 and N - 3 of N layers, and what the head reads."""
    chosen = (2, num_layers // 2, num_layers - 3, num_layers + 1)
    if len(set(chosen)) != len(chosen) or min(chosen) < 0:
        raise ValueError(f"a model of {num_layers} layers is too shallow for EAGLE-3's boundaries: name others")
    return chosen
