import pytest

from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import LLAMA_4_SCOUT, LLAMA_8B
from benchmarks.inflate.tensors import RandomModel
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.figures import Bytes, drafted_figures, side_by_side, steps_figures
from benchmarks.local_engine.local_loop import Arrival
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat


def test_times_are_between_arrivals_and_the_bandwidth_is_the_median_steps():
    arrivals = [Arrival(at, 2, 2, 6) for at in (1.0, 1.004, 1.008, 1.018)]
    figures = steps_figures(arrivals, 16_000_000_000)
    assert figures["step ms"] == pytest.approx(4.0)
    assert figures["mean ms"] == pytest.approx(6.0)
    assert figures["tokens/s"] == pytest.approx(6 / 0.018)
    assert figures["TB/s"] == pytest.approx(4.0)
    assert figures["steps"] == 3
    assert drafted_figures(arrivals) == {"nodes a step": 6.0, "steps with trees": 3}


def test_bytes_of_the_large_shape():
    read = Bytes.of(LLAMA_8B.config(ModelConfig.from_folder(DEMO_MODEL)))
    assert read.kv_per_token == 131_072
    # 8.03 billion parameters, of which the embedding is not read.
    assert read.weights == 2 * (8_030_261_248 - 128_256 * 4096)
    assert read.step(2, 1000) - read.weights == 2 * 1000 * 131_072


def test_of_a_mixture_the_experts_awake_are_read():
    config = RandomModel(DEMO_MODEL, LLAMA_4_SCOUT).config
    read, expert = Bytes.of(config), 2 * 48 * 3 * 5120 * 8192
    assert read.experts == 16 * expert
    assert read.weights + read.experts == 2 * (107_769_861_120 - 202_048 * 5120 + 36 * 2 * 128)
    assert read.step(1, 0) == read.weights + expert
    assert read.step(64, 0) == read.step(16, 0, 4) < read.weights + 15.75 * expert
    assert read.step(64, 0) > read.weights + 15.7 * expert


def test_of_rounded_weights_the_bytes_that_they_take_are_read():
    source = RandomModel(DEMO_MODEL, LLAMA_4_SCOUT)
    read, whole = Bytes.of(QuantisedTensors(source, RoundedFormat("fp8")).config), Bytes.of(source.config)
    assert 0.5 < read.experts / whole.experts < 0.5005
    head = 2 * 202_048 * 5120
    assert 0.5 < (read.weights - head) / (whole.weights - head) < 0.502


def test_tables_side_by_side():
    exact = [{"rows": 1, "ms": 4.0}, {"rows": 2, "ms": 6.0}]
    fast = [{"rows": 2, "ms": 5.0}]
    assert side_by_side({"exact": exact, "fast": fast}, ["rows"], "ms") == [
        {"rows": 1, "exact ms": 4.0, "fast ms": None, "exact / fast": None},
        {"rows": 2, "exact ms": 6.0, "fast ms": 5.0, "exact / fast": 1.2},
    ]
