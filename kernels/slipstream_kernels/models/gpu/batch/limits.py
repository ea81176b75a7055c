"""What a GPU model is prepared for, resolved once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.kv_form import FLOAT, KVForm
from slipstream_kernels.token_tree import MAX_ROWS

MAX_PAGE_SIZE = 64


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Raises ValueError with the field and its limit where a value is out of range.

    Fields are named as in the engine's configuration. `num_pages` 0 stands for as many as fit, `max_context` 0 for
    the model's own. `memory_utilization` is the share of the device's memory that everything together may take.
    `boundaries` is at how many of them a pass can keep the states of its rows; those at `expected_boundaries` are kept
    by all graphs captured at start-up, as drafters will want them. `max_adapters` LoRA adapters, of ranks
    up to `max_adapter_rank`, have room. `kv` is how keys and values are held. `fp8_activations`: layers of e4m3 that
    are read from a folder have activations in e4m3.
    """

    max_running: int = 64
    max_nodes: int = MAX_ROWS
    step_nodes: int = 512
    prefill_chunk: int = 2048
    page_size: int = 16
    num_pages: int = 0
    max_context: int = 0
    memory_utilization: float = 0.9
    boundaries: int = 0
    expected_boundaries: tuple[int, ...] = ()
    max_adapters: int = 0
    max_adapter_rank: int = 16
    kv: KVForm = FLOAT
    fp8_activations: bool = False

    def __post_init__(self) -> None:
        self._check("max_running", 1, 4096)
        self._check("max_nodes", 1, MAX_ROWS)
        self._check("step_nodes", 0, 2**16)
        self._check("prefill_chunk", 1, 2**16)
        self._check("page_size", 1, MAX_PAGE_SIZE)
        self._check("num_pages", 0, 2**31 // (MAX_PAGE_SIZE * 2))
        self._check("max_context", 0, 2**24)
        self._check("memory_utilization", 0.01, 1)
        self._check("boundaries", 0, 64)
        if len(self.expected_boundaries) > self.boundaries:
            raise ValueError(f"expected_boundaries are {self.expected_boundaries}, must be at most {self.boundaries}")
        self._check("max_adapters", 0, 1024)
        self._check("max_adapter_rank", 1, 128)

    @property
    def scratch_slots(self) -> int:
        """Slots of drafted nodes: no pass has more of them."""
        return min(self.max_running * (self.max_nodes - 1), self.step_nodes)

    @property
    def max_decode_rows(self) -> int:
        """Most rows that decode in one pass, drafted nodes included: also the most logits."""
        return self.max_running + self.scratch_slots

    @property
    def max_rows(self) -> int:
        return self.prefill_chunk + self.max_decode_rows

    @property
    def context_pages(self) -> int:
        """Pages of one request of full length."""
        return -(-self.max_context // self.page_size)

    def _check(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        if not low <= value <= high:
            raise ValueError(f"{field} is {value}, must be from {low} to {high}")
