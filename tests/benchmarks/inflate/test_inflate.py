import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.folder import write_folder
from benchmarks.inflate.shape import LLAMA_8B, Shape, ShapeError, Stream, check
from benchmarks.inflate.tensors import Inflation, RandomModel
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import expected_shapes, load_tensors
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.questions import question_ids

SIZES = {"hidden": 1952, "layers": 9, "heads": 8, "kv-heads": 2, "intermediate": 1088, "vocab": 8208, "context": 8192}
"""Five blocks of the demo model's stream, the last of which holds a thousandth of the mean of squares."""
NEW_TOKENS = 12
GAP = 0.001
"""Where the two likeliest tokens are this close, the order of summation may turn them round."""


def forward(model, tokens):
    pages = -(-len(tokens) // 16)
    cache = model.new_cache(num_pages=pages, page_size=16, scratch_slots=1)
    return np.array(model.forward(cache, RowBatch.chunk(tokens, 0, range(pages), 16)))


def greedy(model, prompt, count):
    """Tokens, and the logits that decided each."""
    cache = model.new_cache(num_pages=8, page_size=16, scratch_slots=1)
    tokens, rows = list(prompt), []
    for start in [0, *range(len(prompt), len(prompt) + count - 1)]:
        logits = model.forward(cache, RowBatch.chunk(tokens[start:], start, range(8), 16))
        rows.append(np.array(logits[-1]))
        tokens.append(int(np.argmax(rows[-1])))
    return tokens, np.stack(rows)


@pytest.fixture(scope="module")
def inflated(demo_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "inflated"
    flags = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    assert main([str(folder), "--model", str(demo_model), *flags]) == 0
    return folder


def test_greedy_tokens_are_the_demo_models(demo_model, inflated):
    small, large = CausalLM.load(demo_model), CausalLM.load(inflated)
    prompts = question_ids(demo_model)
    assert len(prompts) == 50
    compared = 0
    for prompt in prompts:
        tokens, expected = greedy(small, prompt, NEW_TOKENS)
        logits = forward(large, tokens[:-1])[len(prompt) - 1 :]
        # Fed the demo model's own text, so that one near-tie does not spoil what follows.
        top = np.sort(expected, axis=1)
        clear = top[:, -1] - top[:, -2] > GAP
        found = logits.argmax(axis=1)
        assert (found[clear] == np.array(tokens[len(prompt) :])[clear]).all()
        np.testing.assert_allclose(logits[:, : expected.shape[1]], expected, atol=GAP / 2)
        assert logits[:, expected.shape[1] :].max() < -1000
        compared += int(clear.sum())
    assert compared > 0.99 * 50 * NEW_TOKENS


def test_transformers_reads_the_folder_and_computes_the_same(demo_model, inflated):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt = question_ids(demo_model)[7]
    assert AutoTokenizer.from_pretrained(inflated).decode(prompt[2:-2]) == "<|user|>What is the sea?"
    with torch.inference_mode():
        logits = [
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([prompt])).logits[0]
            for folder in (demo_model, inflated)
        ]
    assert (logits[1][:, : logits[0].shape[1]] - logits[0]).abs().max() < GAP / 2
    assert logits[1][:, logits[0].shape[1] :].max() < -1000


def test_the_folder_is_whole_and_says_what_it_is(demo_model, inflated):
    config = ModelConfig.from_folder(inflated)
    source = ModelConfig.from_folder(demo_model)
    assert (config.hidden_size, config.num_layers, config.vocab_size) == (1952, 9, 8208)
    assert (config.rope, config.rms_norm_eps, config.eos_token_ids) == (
        source.rope,
        source.rms_norm_eps,
        source.eos_token_ids,
    )
    assert not config.tie_word_embeddings
    assert load_tensors(inflated, config).keys() == dict(expected_shapes(config)).keys()


def test_what_is_added_is_random_where_it_may_be(tiny_model):
    shape = Shape(512, 3, 6, 2, 64, 256, 600, 512)
    tensors = dict(Inflation(tiny_model, shape).tensors())
    assert tensors["model.layers.2.mlp.gate_proj.weight"].float().std() == pytest.approx(0.02, rel=0.02)
    assert not tensors["model.layers.2.mlp.down_proj.weight"].any()
    assert not tensors["model.layers.2.self_attn.o_proj.weight"].any()
    assert (tensors["model.layers.0.self_attn.v_proj.weight"][:, 128:] != 0).float().mean() > 0.99
    again = dict(Inflation(tiny_model, shape).tensors())
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    other = dict(Inflation(tiny_model, shape, seed=1).tensors())
    name = "model.layers.2.mlp.up_proj.weight"
    assert not torch.equal(tensors[name], other[name])
    assert not torch.equal(tensors[name], tensors["model.layers.2.mlp.gate_proj.weight"])


def test_weights_are_spread_over_files_that_the_index_names(tiny_model, tmp_path):
    shape = Shape(512, 3, 4, 2, 64, 256, 600, 512)
    write_folder(RandomModel(tiny_model, shape), tiny_model, shape, tmp_path, shard_bytes=1 << 20)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(t.nbytes for _, t in RandomModel(tiny_model, shape).tensors())
    load_tensors(tmp_path, ModelConfig.from_folder(tmp_path))


def stored(folder):
    """All tensors of a folder as files hold them."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("form", ["fp8", "w4a16"])
def test_a_rounded_folder_is_the_one_that_quantize_writes(tiny_model, tmp_path, form):
    sizes = {"hidden": 256, "layers": 1, "heads": 4, "kv-heads": 2, "head-dim": 64, "intermediate": 160, "vocab": 600}
    flags = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    flags += ["--model", str(tiny_model), "--random", "--context", "512"]
    assert main([str(tmp_path / "plain"), *flags]) == 0
    assert main([str(tmp_path / "rounded"), *flags, "--format", form, "--group", "64"]) == 0
    quantise_folder(tmp_path / "plain", tmp_path / "after", RoundedFormat(form, 64))
    got, expected = stored(tmp_path / "rounded"), stored(tmp_path / "after")
    assert got.keys() == expected.keys() and len(got) > 15
    for name, tensor in got.items():
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name
    left = ["model.layers.0.mlp.down_proj"] if form == "w4a16" else []
    said = json.loads((tmp_path / "rounded" / "config.json").read_text())["quantization_config"]
    assert said == json.loads((tmp_path / "after" / "config.json").read_text())["quantization_config"]
    assert said["ignore"] == ["lm_head", *left]


def test_a_head_is_not_rounded(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "out"), "--head", str(tmp_path), "--format", "fp8"])
    assert "argument --format: a head is not rounded" in capsys.readouterr().err


def test_a_random_models_logits_are_about_standard_normal(tiny_model, tmp_path):
    shape = Shape(256, 4, 4, 2, 64, 512, 1024, 512)
    write_folder(RandomModel(tiny_model, shape, seed=3), tiny_model, shape, tmp_path)
    logits = forward(CausalLM.load(tmp_path), list(range(40)))
    assert 0.5 < logits.std() < 2.0


def test_the_stream_of_the_large_shape_keeps_the_mean_of_squares():
    stream = Stream.layout(384, LLAMA_8B.hidden_size)
    assert sum(scale**2 for scale in stream.scales) == pytest.approx(4096 / 384, rel=1e-12)
    assert all((scale**2).as_integer_ratio()[0] == 1 or scale in (1.0, 2.0) for scale in stream.scales[:-1])
    assert len(stream.scales) * 384 <= stream.mark
    # Of the mean, the block that rounds on its own is a quarter of a per cent.
    assert stream.scales[-1] ** 2 * 384 / 4096 < 0.0025


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 512}, "no room"),
        ({"hidden_size": 384}, "a coordinate of the stream"),
        ({"num_layers": 7}, "num_layers is 8"),
        ({"head_dim": 64}, "head_dim is 128"),
        ({"num_heads": 16}, "heads for each key head is 3"),
        ({"num_heads": 31}, "no multiple"),
        ({"intermediate_size": 512}, "intermediate_size is 1024"),
        ({"vocab_size": 4096}, "vocab_size is 8192"),
    ],
)
def test_shapes_that_do_not_hold_the_model_are_refused(demo_model, change, message):
    fields = {name: getattr(LLAMA_8B, name) for name in LLAMA_8B.__dataclass_fields__}
    with pytest.raises(ShapeError, match=message):
        check(ModelConfig.from_folder(demo_model), Shape(**(fields | change)))


def test_a_refusal_is_told_and_fails_the_command(demo_model, tmp_path, capsys):
    assert main([str(tmp_path / "out"), "--model", str(demo_model), "--hidden", "500"]) == 1
    assert "no room" in capsys.readouterr().err
