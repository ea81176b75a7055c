"""A tokenizer and a model small enough to make within a second."""

import pytest
import torch
from tokenizers import Tokenizer

from training.common.model import CausalLM, initialise
from training.common.model_shape import ModelShape
from training.demo_models.tokenizer import train_tokenizer

WORDS = (
    "the",
    "slipstream",
    "of",
    "one",
    "rider",
    "carries",
    "another",
    "along",
    "a",
    "road",
    "past",
    "fields",
    "hills",
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = (" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 12)) + f" {i}\n\n" for i in range(400))
    return train_tokenizer(texts, 320)


@pytest.fixture
def model() -> CausalLM:
    shape = ModelShape(320, 192, 2, 3, 1, 64, 128)
    made = CausalLM(shape, torch.float32)
    initialise(made, 0)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return made.requires_grad_(False)
