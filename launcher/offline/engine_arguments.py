"""Arguments of `LLM` by the names that vLLM's has, as flags of the verify service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.offline.argument_checks import check_type, check_unoffered

OWNER: Final = "LLM"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is a flag of the verify service. Numbers are from `low` to `high`, None: without end."""

    flag: str
    kind: type
    low: float | None = None
    high: float | None = None


ARGUMENTS: Final[Mapping[str, Argument]] = {
    "served_model_name": Argument("--model-name", str),
    "device": Argument("--device", str),
    "tensor_parallel_size": Argument("--tensor-parallel-size", int, 1, 8),
    "gpu_memory_utilization": Argument("--gpu-memory-utilization", float, 0.0, 1.0),
    "max_model_len": Argument("--max-context", int, 1),
    "max_num_seqs": Argument("--max-running", int, 1, 4096),
    "block_size": Argument("--page-size", int, 1, 64),
    "num_gpu_blocks_override": Argument("--num-pages", int, 1),
    "kv_cache_dtype": Argument("--kv-cache-dtype", str),
    "enable_prefix_caching": Argument("--prefix-cache", bool),
}

UNOFFERED: Final[Mapping[str, tuple[Any, ...]]] = {
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "skip_tokenizer_init": (False,),
    "trust_remote_code": (False,),
    "revision": (None,),
    "hf_token": (None, False),
    "hf_overrides": (None,),
    "download_dir": (None,),
    "load_format": ("auto", "safetensors"),
    "quantization": (None,),
    "cpu_offload_gb": (0, 0.0),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "enforce_eager": (None, False),
    "disable_custom_all_reduce": (False,),
    "disable_log_stats": (True,),
    "enable_chunked_prefill": (None, True),
    "max_num_batched_tokens": (None,),
    "runner": ("auto", "generate"),
    "task": ("auto", "generate"),
}
"""Arguments that vLLM has, with the values that ask for nothing beyond what is done here."""

DTYPES: Final = ("auto", "bfloat16", "torch.bfloat16")


def verify_flags(given: Mapping[str, Any]) -> list[str]:
    """Flags of the verify service for the arguments that are not None.

    TypeError for a wrong type or an unknown name; ValueError, naming argument and limit, for a value that will not do.
    """
    given = dict(given)
    dtype = given.pop("dtype", "auto")
    if str(dtype) not in DTYPES:
        raise ValueError(f"{OWNER}: dtype={dtype!r} is not offered, only 'auto' or 'bfloat16': weights are bfloat16")
    flags = []
    for name in [name for name in given if name in ARGUMENTS]:
        argument, value = ARGUMENTS[name], given.pop(name)
        check_type(OWNER, name, value, argument.kind, optional=True)
        if value is not None:
            flags.append(_flag(name, argument, value))
    check_unoffered(OWNER, given, UNOFFERED, "; flags of the services go into verify_args and draft_args")
    return flags


def _flag(name: str, argument: Argument, value: Any) -> str:
    if argument.kind is bool:
        return argument.flag if value else f"--no-{argument.flag.removeprefix('--')}"
    if argument.low is not None:
        high = argument.high
        # Written so that NaN is refused; a share is above its lower end.
        inside = value >= argument.low and (high is None or value <= high) and (argument.kind is int or value > 0)
        if not inside:
            limits = f"at least {argument.low}" if high is None else f"from {argument.low} to {high}"
            raise ValueError(f"{OWNER}: {name} must be {limits}, got {value!r}")
    return f"{argument.flag}={value}"
