from __future__ import annotations

import pytest

from launcher.offline.engine_arguments import ARGUMENTS, verify_flags
from verify_service.config import VerifySettings


def test_names_of_vllm_become_flags_of_the_verify_service():
    given = {
        "served_model_name": "mine", "device": "cpu", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.5,
        "max_model_len": 256, "max_num_seqs": 4, "block_size": 8, "num_gpu_blocks_override": 99,
        "enable_prefix_caching": False, "kv_cache_dtype": "fp8",
    }  # fmt: skip
    assert given.keys() == ARGUMENTS.keys()
    settings = VerifySettings(model=".", _cli_parse_args=verify_flags(given | {"dtype": "bfloat16"}))
    assert (settings.model_name, settings.device, settings.tensor_parallel_size) == ("mine", "cpu", 2)
    assert (settings.gpu_memory_utilization, settings.max_context, settings.max_running) == (0.5, 256, 4)
    assert (settings.page_size, settings.num_pages, settings.prefix_cache) == (8, 99, False)
    assert settings.kv_cache_dtype == "fp8"


def test_what_asks_for_nothing_passes():
    given = {"max_model_len": None, "trust_remote_code": False, "quantization": None, "enforce_eager": False}
    assert verify_flags(given) == []
    assert verify_flags({"enable_prefix_caching": True}) == ["--prefix-cache"]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"tensor_parallel_size": "2"}, TypeError, "LLM: tensor_parallel_size must be int or None, got str: '2'"),
        ({"tensor_parallel_size": True}, TypeError, "tensor_parallel_size must be int"),
        ({"tensor_parallel_size": 0}, ValueError, "tensor_parallel_size must be from 1 to 8, got 0"),
        ({"max_model_len": 0}, ValueError, "max_model_len must be at least 1, got 0"),
        ({"gpu_memory_utilization": 0}, ValueError, "gpu_memory_utilization must be from 0.0 to 1.0, got 0"),
        ({"gpu_memory_utilization": float("nan")}, ValueError, "gpu_memory_utilization must be"),
        ({"enable_prefix_caching": 1}, TypeError, "enable_prefix_caching must be bool or None, got int"),
        ({"dtype": "float16"}, ValueError, "dtype='float16' is not offered, only 'auto' or 'bfloat16'"),
        ({"quantization": "awq"}, ValueError, "LLM: quantization='awq' is not offered, only None"),
        ({"trust_remote_code": True}, ValueError, "trust_remote_code=True is not offered, only False"),
        ({"trust_remote_code": 0}, ValueError, "trust_remote_code=0 is not offered"),
        ({"max_modellen": 5}, TypeError, "LLM takes no argument 'max_modellen'; flags of the services go into"),
    ],
)
def test_what_has_no_meaning_here_is_named(given, error, words):
    with pytest.raises(error, match=words):
        verify_flags(given)
