"""The engine that fits a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from verify_service.core.engine_config import EngineConfig
from verify_service.kv_cache.page_table import PageTable
from verify_service.model_runner.base import ModelRunner
from verify_service.model_runner.cpu_runner import CpuModelRunner

if TYPE_CHECKING:
    from slipstream_kernels.models.gpu.gpu_model import GpuModel

TargetModel: TypeAlias = "CausalLM | GpuModel"


def new_model_runner(model: TargetModel, config: EngineConfig, page_table: PageTable) -> ModelRunner[Any]:
    """An engine that runs steps of `model` over the pages that `page_table` names.

    What a GPU needs is imported where its model is given.
    """
    if isinstance(model, CausalLM):
        return CpuModelRunner(model, config, page_table)
    from verify_service.model_runner.gpu_runner import GpuModelRunner

    return GpuModelRunner(model, config, page_table)
