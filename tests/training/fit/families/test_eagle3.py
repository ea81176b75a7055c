"""What an EAGLE-3 head begins with."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from support.fit_sources import SHAPE, InMemory, answered, small_target
from training.fit.families.eagle3 import Eagle3Head
from training.fit.family import family_of
from training.fit.plan import Survey
from training.fit.run import columns_of
from training.fit.settings import FitSettings
from training.fit.target import TargetRows


@pytest.mark.parametrize("wide", [0, 2 * SHAPE.intermediate_size])
def test_its_mlp_begins_as_the_targets_however_wide(wide: int, tmp_path: Path) -> None:
    model = small_target(tmp_path)
    source = InMemory(tmp_path, [answered(model, 1, prompt=5, answer=8)])
    chosen = family_of(settings := FitSettings(intermediate_size=wide, draft_vocab=64))
    target = TargetRows(tmp_path, torch.device("cpu"), torch.float32)
    survey = Survey.of(source, row_length=32, steps=settings.unroll or 7, vocab_size=SHAPE.vocab_size)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    assert isinstance(head, Eagle3Head)
    mlp, theirs = head.weights.midlayer.mlp, target.last_layer()
    assert mlp.up_proj.weight.shape[0] == (wide or SHAPE.intermediate_size)
    x = torch.randn(3, SHAPE.hidden_size, generator=torch.Generator().manual_seed(0))
    gate, up, down = (theirs[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    assert torch.allclose(mlp(x), F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down), atol=1e-5)
