"""What the service tells about itself and what it counts, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts fixed at start-up; their meaning is that of GetInfoResponse in slipstream/v1/verify.proto."""

    model_name: str
    model_path: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    max_running: int
    max_queued: int
    eos_token_ids: tuple[int, ...]
    mode: str
    device: str
    page_size: int
    num_pages: int
    max_nodes: int
    process_id: int
    version: str
    attention: str = ""
    tensor_parallel_size: int = 1
    gpu_uuid: str = ""
    max_adapters: int = 0
    max_adapter_rank: int = 0
    kv_cache_dtype: str = ""
    prefix_cache: bool = True
