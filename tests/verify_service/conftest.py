"""One model for all tests of the verify loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.host_model import HostModel
from support.verify_loop import Target
from verify_service.grammar.compiler import GrammarCompiler


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> CausalLM:
    """A random Llama of two layers, vocabulary and context of 512, compiled."""
    model = CausalLM.load(tiny_model, threads=1)
    model.warm_up()
    return model


@pytest.fixture(params=["cpu", "device"])
def target(request: pytest.FixtureRequest, model: CausalLM) -> Target:
    """`model` under the CPU's engine, and under the engine of devices that run behind the loop."""
    return model if request.param == "cpu" else partial(HostModel, model)


@pytest.fixture(scope="module")
def twins(tiny_model: Path) -> Iterator[Target]:
    """The same folder as a GpuModel on the CPU, its ops' twins in torch; engines of equal size share one.

    Tiny tensors are not worth waking a second thread for, least of all beside other work.
    """
    from support.device_reference import twin_target  # loads triton, which must come after TRITON_INTERPRET is set

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield twin_target(tiny_model)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    """The model's, for grammars."""
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def compiler(tokenizer: GrammarTokenizer) -> GrammarCompiler:
    """What compiles grammars for loops, without trials."""
    return GrammarCompiler(lambda: tokenizer)
