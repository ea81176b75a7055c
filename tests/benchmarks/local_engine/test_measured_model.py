import json

import numpy as np
import pytest
import torch

from benchmarks.inflate.shape import Shape
from benchmarks.inflate.tensors import RandomModel
from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import HashedModel, PassTimes, make_weights, start_model
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import PassPlan
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight

SHAPE = Shape(256, 2, 4, 2, 64, 256, 600, 512)
CONFIG = EngineConfig(num_pages=8, max_running=2, max_nodes=2, step_nodes=1, prefill_chunk=16, max_context=64)


def test_a_folders_tensors_are_taken_over_as_they_are_loaded(tiny_model):
    loaded = make_weights("folder", tiny_model, SHAPE, "cpu")
    source = dict(RandomModel(tiny_model, SHAPE).tensors())
    made = make_weights("random", tiny_model, SHAPE, "cpu")
    assert isinstance(loaded, GpuWeights)
    assert torch.equal(made.head, source["lm_head.weight"])
    assert torch.equal(made.layers[1].o, source["model.layers.1.self_attn.o_proj.weight"])
    again = GpuWeights.from_tensors(made.shard.config, source.items(), "cpu")
    assert all(torch.equal(a.gate_up, b.gate_up) for a, b in zip(made.layers, again.layers, strict=True))


def test_weights_of_a_shape_and_of_a_config_are_rounded(tiny_model, tmp_path):
    made = make_weights("random", tiny_model, SHAPE, "cpu", form=RoundedFormat("w4a16", 128))
    assert isinstance(made.layers[1].o, PackedWeight) and made.layers[1].o.form.group == 128
    config = json.loads((tiny_model / "config.json").read_text())
    config["quantization_config"] = RoundedFormat("fp8").config(["lm_head"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    drawn = make_weights("config", tmp_path, SHAPE, "cpu")
    assert isinstance(drawn.layers[0].qkv, PackedWeight) and drawn.layers[0].qkv.form.number == "e4m3"


def test_hashes_stand_for_whole_rows_of_logits(tiny_model):
    model = start_model(make_weights("random", tiny_model, SHAPE, "cpu"), CONFIG, mode="exact", hashed=True)
    assert isinstance(model, HashedModel)
    plan = PassPlan.chunk(np.arange(3, dtype=np.int32), line=0, start=0, slots=np.arange(3, dtype=np.int32))
    ticket = model.launch(plan)
    first = ticket.logits.clone()
    zero = np.zeros(1, np.int32)
    _, (before,), ids, values = model.logprobs(ticket, zero, zero, 0)
    assert ids.shape == values.shape == (1, 0)
    assert model.logprobs(ticket, zero, zero, 0)[1] == [before]
    row = ticket.logits[0]
    for position in (0, 599):
        row.view(torch.int32)[position] ^= 1
        assert model.logprobs(ticket, zero, zero, 0)[1] != [before]
        row.copy_(first[0])
    row[[3, 4]] = row[[4, 3]]
    assert model.logprobs(ticket, zero, zero, 0)[1] != [before]


@pytest.mark.gpu
def test_marks_of_passes_give_gaps():
    times = PassTimes()
    for _ in range(3):
        times.begin()
        for _ in range(3):
            torch.zeros(1 << 20, device="cuda")
            times.mark()
    times.begin()  # a pass under way
    assert len(times.between_passes()) == len(times.between_graphs()) == 2
    assert len(times.graphs()) == 3
    assert min(times.graphs()) > 0
