"""Texts as a target reads them, against a pass of the model that is served."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from draft_service.layer_check.reference_states import LENGTH, TEXTS, facts_of, read_texts
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import Capture, boundaries_of
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.families import FORMS as FAMILIES
from support.models import make_tiny_model
from support.quantised_models import FORMS, write_quantised

LARGE, PATIENCE = 1 << 30, 600.0


def floats(bits):
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float()


@pytest.mark.parametrize(
    "kind",
    [{}, {"family": "qwen3", "tied": False, "shards": 2}, {"family": "qwen2", "layers": 3, "heads": 4, "kv_heads": 2}],
)
def test_states_and_likeliest_tokens_are_those_of_the_model_served(kind, tmp_path, monkeypatch):
    """Scoring rows are taken in parts that do not divide their number."""
    monkeypatch.setattr("draft_service.layer_check.reference_states._HEAD_ROWS", 200)
    folder = make_tiny_model(tmp_path, seed=4, **kind)
    model, facts = CausalLM.load(folder, threads=1), facts_of(folder)
    text = read_texts(folder, LARGE, PATIENCE)
    known = boundaries_of(model.config.num_layers)
    assert (facts.num_layers, facts.feature_boundaries) == (model.config.num_layers, tuple(known))
    assert text.tokens.shape == text.likeliest.shape == text.states.shape[:2] == (len(TEXTS), LENGTH)
    assert set(text.tokens[:, 0]) == {model.config.bos_token_id}
    assert len({tuple(line) for line in text.tokens.tolist()}) == len(TEXTS)
    same = 0
    for line in range(len(TEXTS)):
        capture = Capture.of(known, LENGTH, num_layers=model.config.num_layers, hidden_size=model.config.hidden_size)
        cache = model.new_cache(num_pages=1, page_size=LENGTH, scratch_slots=0)
        logits = model.forward(cache, RowBatch.chunk(text.tokens[line].tolist(), 0, [0], LENGTH), capture)
        torch.testing.assert_close(
            floats(text.states[line].reshape(LENGTH, -1)), floats(capture.rows), atol=0.02, rtol=0.02
        )
        same += int((text.likeliest[line] == logits.argmax(axis=1)).sum())
    assert same >= 0.97 * text.tokens.size, "but for tokens that are almost equally likely"
    assert np.array_equal(text.columns(5, (2, 0))[1], text.states[1, 5, [2, 0]].flatten())


def test_what_cannot_be_read_is_refused(tiny_model, tmp_path):
    with pytest.raises(FailedPreconditionError, match=r"config\.json"):
        facts_of(tmp_path)
    with pytest.raises(FailedPreconditionError, match=r"neither model\.safetensors"):
        read_texts(tmp_path, LARGE, PATIENCE)
    with pytest.raises(FailedPreconditionError, match="MiB of weights, at most 0 are read"):
        read_texts(tiny_model, 1000, PATIENCE)
    with pytest.raises(FailedPreconditionError, match=r"reading .* here would take \d+ s, more than 0"):
        read_texts(tiny_model, LARGE, 0.0)
    gemma = make_tiny_model(tmp_path / "gemma", **FAMILIES["gemma2"])
    with pytest.raises(FailedPreconditionError, match=r"a gemma2 with norms behind .*, windows is not read for this"):
        read_texts(gemma, LARGE, PATIENCE)
    phi = make_tiny_model(tmp_path / "phi", **FAMILIES["phi4-mini"])
    with pytest.raises(FailedPreconditionError, match="a phi3 with heads of which a part turns is not read"):
        read_texts(phi, LARGE, PATIENCE)
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(FailedPreconditionError, match=r"copy/tokenizer\.json cannot be read"):
        read_texts(copy, LARGE, PATIENCE)


def test_threads_are_left_as_they_were(tiny_model):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    read_texts(tiny_model, LARGE, PATIENCE)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_a_quantised_target_reads_as_the_model_it_decodes_to(tmp_path):
    source = make_tiny_model(tmp_path / "source", tied=False)
    folder = write_quantised(source, tmp_path / "model", FORMS["pack4 g32"])
    got, expected = (read_texts(each, LARGE, PATIENCE) for each in (folder, tmp_path / "model-plain"))
    assert np.array_equal(got.states, expected.states) and np.array_equal(got.likeliest, expected.likeliest)
