"""The engine that fits a model."""

from __future__ import annotations

from typing import Any

from slipstream_kernels.models.causal_lm import CausalLM
from verify_service.cpu_engine import CpuEngine
from verify_service.engine_config import EngineConfig
from verify_service.page_table import PageTable
from verify_service.step_engine import StepEngine

TargetModel = CausalLM


def new_engine(model: TargetModel, config: EngineConfig, page_table: PageTable) -> StepEngine[Any]:
    """An engine that runs steps of `model` over the pages that `page_table` names."""
    return CpuEngine(model, config, page_table)
