"""One model for all tests of the verify loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream_kernels.models.causal_lm import CausalLM


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> CausalLM:
    """A random Llama of two layers, vocabulary and context of 512, compiled."""
    model = CausalLM.load(tiny_model, threads=1)
    model.warm_up()
    return model
