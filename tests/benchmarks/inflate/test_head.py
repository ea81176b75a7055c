import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.folder import write_head
from benchmarks.inflate.head import HeadInflation, RandomHead, head_shapes, read_bytes
from benchmarks.inflate.shape import LLAMA_8B, Shape, ShapeError
from draft_service.heads.loading import load_eagle
from draft_service.proposers.base import DraftRequest, Opening, Sampling, Target
from draft_service.proposers.eagle.cpu import EagleConfig, EagleProposer
from draft_service.proposers.hidden_states import bfloat16_copy
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support import eagle_heads
from support.features import states_of
from support.questions import question_ids

SIZES = {"hidden": 1952, "layers": 9, "heads": 8, "kv-heads": 2, "intermediate": 1088, "vocab": 8208, "context": 8192}
WIDE = Shape(1952, 9, 8, 2, 128, 1088, 8208, 8192)
READ, ENTRIES, WIDE_ENTRIES = (2, 4, 5), 500, 512
PROMPTS = 8
ROUNDING = 1e-3
"""Of log-probabilities: the last of the stream's blocks rounds on its own, and sums have another order."""


def write_small(folder, *, seed=0, **config):
    """A head of random bfloat16 weights for the demo model, in the layout of the public checkpoints."""
    layout = eagle_heads.Layout("eagle3", draft_vocab=ENTRIES, head_dim=128, rename={"layers.0.": "midlayer."})
    shape = eagle_heads.Shape(hidden=384, intermediate=640, heads=3, kv_heads=1, vocab=8192)
    eagle_heads.write_head(folder, layout, shape, seed, **config)
    file = folder / "model.safetensors"
    stored = {name: each.bfloat16() if each.is_floating_point() else each for name, each in load_file(file).items()}
    # Scores far enough apart that a rounding seldom turns two round.
    stored["lm_head.weight"] *= 3
    save_file(stored, file)
    return folder


@pytest.fixture(scope="module")
def folders(demo_model, tmp_path_factory):
    """The small head, the widened model and the widened head."""
    root = tmp_path_factory.mktemp("inflated")
    flags = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    small = write_small(root / "small")
    assert main([str(root / "model"), "--model", str(demo_model), *flags]) == 0
    head = [str(root / "head"), "--model", str(demo_model), "--head", str(small), "--draft-vocab", str(WIDE_ENTRIES)]
    assert main([*head, *flags]) == 0
    return small, root / "model", root / "head"


def drafter(folder, model):
    """A proposer with the folder's head, and the model."""
    target = CausalLM.load(model)
    proposer = EagleProposer("eagle3", load_eagle(folder, model), EagleConfig(max_depth=5, top_k=4, max_nodes=20))
    config = target.config
    proposer.bind(Target(config.vocab_size, "", config.max_context, config.hidden_size, config.num_layers))
    return proposer, target


def trees(folder, model, prompts):
    """What the head drafts at the end of each prompt, from the model's own states."""
    proposer, target = drafter(folder, model)
    for session, prompt in enumerate(prompts, start=1):
        states = states_of(target, prompt[:-1], proposer.feature_boundaries)
        proposer.open(session, Opening(prompt, len(prompt) - 1, sampling=Sampling(temperature=0.0)))
        proposer.take_features(session, 0, bfloat16_copy(states))
    return proposer.propose([DraftRequest(session, 20, 5) for session in range(1, len(prompts) + 1)])


def test_the_widened_head_drafts_the_small_heads_trees_from_the_widened_models_states(demo_model, folders):
    small, model, head = folders
    prompts = question_ids(demo_model)[:PROMPTS]
    expected, found = trees(small, demo_model, prompts), trees(head, model, prompts)
    equal = [pair for pair in zip(expected, found, strict=True) if pair[0].token_ids == pair[1].token_ids]
    assert len(equal) >= PROMPTS - 1
    for before, after in equal:
        assert len(before) == 19
        assert before.parents == after.parents
        assert after.log_probs == pytest.approx(before.log_probs, abs=ROUNDING)
    deepest = [max(tree.depths) for tree in expected]
    assert max(deepest) >= 3


def test_scores_are_the_small_heads_and_padding_is_never_likely(demo_model, folders):
    small, model, head = folders
    prompt = question_ids(demo_model)[3]
    logits = []
    for folder, target_folder in ((small, demo_model), (head, model)):
        proposer, target = drafter(folder, target_folder)
        states = bfloat16_copy(states_of(target, prompt, proposer.feature_boundaries)).float()
        own = load_eagle(folder, target_folder)
        logits.append(own.logits(own.fuse(states)))
    known = logits[0].isfinite()
    assert int(known.sum(1)[0]) == ENTRIES
    torch.testing.assert_close(logits[1][:, :8192][known], logits[0][known], atol=ROUNDING * 3, rtol=0)
    padding = logits[1][:, 8192:]
    assert padding.isfinite().sum(1).tolist() == [WIDE_ENTRIES - ENTRIES] * len(prompt)
    assert padding[padding.isfinite()].max() < -1000


def test_the_folder_says_what_it_reads_and_has_the_large_shapes(folders):
    config = json.loads((folders[2] / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == list(READ)
    assert (config["hidden_size"], config["target_hidden_size"], config["draft_vocab_size"]) == (1952, 1952, 512)
    assert (config["num_hidden_layers"], config["vocab_size"], config["intermediate_size"]) == (1, 8208, 1088)
    tensors = load_file(folders[2] / "model-00001.safetensors")
    shapes = head_shapes(WIDE, 3, WIDE_ENTRIES)
    assert {name: tuple(each.shape) for name, each in tensors.items()} == shapes | {"d2t": (512,), "t2d": (8208,)}
    ids = torch.arange(512) + tensors["d2t"]
    assert tensors["t2d"].nonzero().flatten().tolist() == sorted(ids.tolist())
    assert ids[ENTRIES:].tolist() == list(range(8192, 8204))


def test_a_head_with_its_own_embedding_needs_no_other_folder(demo_model, folders, tmp_path):
    flags = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    head = ["--head", str(folders[0]), "--draft-vocab", "512", "--own-embedding"]
    assert main([str(tmp_path / "own"), "--model", str(demo_model), *head, *flags]) == 0
    own = load_eagle(tmp_path / "own")
    assert torch.equal(own.vocabulary.embedding, load_eagle(folders[2], folders[1]).vocabulary.embedding)


def test_a_head_without_rows_and_map_is_widened_with_the_models(demo_model, demo_head, tmp_path):
    bare = load_file(demo_head / "model.safetensors")
    weights = iterate_tensors(demo_model, ModelConfig.from_folder(demo_model))
    rows = next(each for name, each in weights if name == "model.embed_tokens.weight")
    assert not bare.keys() & {"lm_head.weight", "d2t"}
    save_file(bare | {"lm_head.weight": rows}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((demo_head / "config.json").read_bytes())
    shape = Shape(1952, 9, 8, 2, 128, 2496, 8208, 8192)
    heads = [HeadInflation(folder, demo_model, shape, entries=8208).tensors() for folder in (demo_head, tmp_path)]
    named = [next(each for name, each in head if name == "lm_head.weight") for head in heads]
    assert len(named[0]) == 8208 and torch.equal(*named)


def test_random_heads_are_loaded_like_any_other(tiny_model, tmp_path):
    shape = Shape(256, 4, 4, 2, 64, 192, 600, 512)
    head = RandomHead(tiny_model, shape, (0, 2, 3), entries=128)
    write_head(head, tmp_path, embedding=torch.randn(600, 256).bfloat16())
    loaded = load_eagle(tmp_path)
    assert loaded.config.boundaries == (0, 2, 3)
    scores = loaded.logits(loaded.fuse(torch.randn(20, 768)))
    scored = scores[scores.isfinite()]
    assert len(scored) == 20 * 128
    assert 0.5 < scored.std() < 2


def test_what_passes_read_of_the_large_head():
    shapes = head_shapes(LLAMA_8B, 3, 32_000)
    assert shapes["fc.weight"] == (4096, 3 * 4096)
    assert shapes["midlayer.self_attn.k_proj.weight"] == (1024, 8192)
    chain = read_bytes(LLAMA_8B, states=3, entries=32_000, passes=5, context=1100)
    assert chain == pytest.approx(3.85e9, rel=0.01)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"norm_before_residual": True}, {}, "norm_before_residual"),
        ({"intermediate_size": 639}, {}, "no EAGLE-3 head"),
        ({}, {"entries": 499}, "scores 500 tokens, which cannot become 499"),
        ({}, {"entries": 517}, "517 need more than 16 spare ids"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, {}, r"its boundaries are \[2, 4, 9\]"),
        ({}, {"head_dim": 64}, "head_dim"),
    ],
)
def test_heads_that_cannot_be_widened_are_refused(demo_model, tmp_path, config, change, message):
    folder = write_small(tmp_path / "head", **config)
    sizes = {name: getattr(WIDE, name) for name in WIDE.__dataclass_fields__} | change
    entries = sizes.pop("entries", WIDE_ENTRIES)
    with pytest.raises(ShapeError, match=message):
        HeadInflation(folder, demo_model, Shape(**sizes), entries=entries)
