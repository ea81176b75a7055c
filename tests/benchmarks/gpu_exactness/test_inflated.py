import pytest

from benchmarks.gpu_exactness.inflated import compare_inflated
from benchmarks.inflate.shape import LLAMA_8B, Shape
from support.questions import question_ids

SMALL = Shape(
    hidden_size=1168,
    num_layers=9,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=1088,
    vocab_size=8208,
    max_context=4096,
)
"""Three blocks of the demo model's stream, and a part more of everything else."""


def test_a_small_inflation_answers_as_the_demo_model(demo_model):
    count = compare_inflated(demo_model, SMALL, question_ids(demo_model)[::30], 4, "cpu")
    assert (count.prompts, count.tokens) == (2, 8)
    assert count.failures() == []


@pytest.mark.gpu
def test_fifty_answers_of_the_large_inflation_are_the_demo_models(demo_model):
    count = compare_inflated(demo_model, LLAMA_8B, question_ids(demo_model), 32, "cuda")
    print(count.text())
    assert count.prompts == 50
    assert count.failures() == []
    assert count.equal_answers >= 40
