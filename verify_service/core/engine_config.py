"""Sizes and limits of the engine, resolved once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.checkpoint.adapter.adapter_config import MOST_RANK
from slipstream_kernels.token_tree import MAX_ROWS

MAX_PAGE_SIZE = 64
MAX_ADAPTERS = 1024


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Raises ValueError with the field and its limit where a value is out of range.

    `prefill_chunk` is how many prompt rows one step computes, over all requests together. `max_nodes` counts the
    rows of one request's tree, root included. `step_nodes` bounds the drafted rows of one step over all requests;
    each is granted an equal share of it. With `adaptive`, requests that leave speculation to the operator get as
    many of these nodes as pay off by measured time, down to none; requests that name a proposer, a budget or
    enable speculation get what they ask for. `max_context` bounds prompt and output of a request together; 0 leaves
    that to the model. `feature_bytes` of hidden states are kept beside the KV pages at most, those of
    `feature_boundaries` always, others while a drafter asks for them. With `fair`, tenants share the engine by their
    weights; else requests are served in order of arrival, whosesoever they are. `max_adapters` LoRA adapters, of ranks
    up to `max_adapter_rank`, have room at a time.
    """

    num_pages: int
    page_size: int = 16
    max_running: int = 64
    max_queued: int = 1024
    max_nodes: int = MAX_ROWS
    step_nodes: int = 512
    prefill_chunk: int = 256
    prefix_cache: bool = True
    adaptive: bool = True
    max_context: int = 0
    feature_bytes: int = 0
    feature_boundaries: tuple[int, ...] = ()
    fair: bool = True
    max_adapters: int = 0
    max_adapter_rank: int = 16

    def __post_init__(self) -> None:
        self._check("num_pages", 1, 2**31 // (MAX_PAGE_SIZE * 2))
        self._check("page_size", 1, MAX_PAGE_SIZE)
        self._check("max_running", 1, 4096)
        self._check("max_queued", 0, 2**20)
        self._check("max_nodes", 1, MAX_ROWS)
        self._check("step_nodes", 0, 2**16)
        self._check("prefill_chunk", 1, 2**16)
        self._check("max_context", 0, 2**31 - 1)
        self._check("feature_bytes", 0, 2**48)
        self._check("max_adapters", 0, MAX_ADAPTERS)
        self._check("max_adapter_rank", 1, MOST_RANK)

    def _check(self, field: str, low: int, high: int) -> None:
        value = getattr(self, field)
        if not low <= value <= high:
            raise ValueError(f"{field} is {value}, must be from {low} to {high}")


def default_num_pages(max_context: int, page_size: int) -> int:
    """Pages for eight requests of full length, the size taken where the operator names none."""
    return 8 * -(-max_context // page_size)
