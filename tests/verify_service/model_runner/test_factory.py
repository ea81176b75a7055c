"""Models find their engines."""

from __future__ import annotations

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.verify_loop import Target
from verify_service.core.engine_config import EngineConfig
from verify_service.model_runner.cpu_runner import CpuModelRunner
from verify_service.model_runner.factory import new_model_runner
from verify_service.model_runner.gpu_runner import GpuModelRunner
from verify_service.scheduler.kv_cache_manager import KVCacheManager

CONFIG = EngineConfig(num_pages=8, max_running=2, step_nodes=8, prefill_chunk=16)


def test_the_engine_follows_the_model(model: CausalLM, twins: Target) -> None:
    table = KVCacheManager(CONFIG, 512).page_table
    on_cpu, on_gpu = new_model_runner(model, CONFIG, table), new_model_runner(twins(CONFIG), CONFIG, table)
    assert (type(on_cpu), on_cpu.lookahead) == (CpuModelRunner, 0)
    assert (type(on_gpu), on_gpu.lookahead) == (GpuModelRunner, 1)
