from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.cpu.paged_kv import PagedKV
from slipstream_kernels.models.cpu.row_batch import RowBatch


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_invariant_here(tiny_model: Path, threads: int) -> None:
    assert probe_row_invariance(CausalLM.load(tiny_model, threads=threads))


@pytest.mark.parametrize("context", [1, 2, 5, 22, 24])
def test_a_short_context_is_probed_as_far_as_it_goes(tiny_model: Path, tmp_path: Path, context: int) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    model = CausalLM.load(folder)
    assert model.config.max_context == context
    assert probe_row_invariance(model)


class LastBitByCompany(CausalLM):
    """Changes the last bit of one logit in passes of one row."""

    __slots__ = ()

    def forward(self, cache: PagedKV, rows: RowBatch) -> npt.NDArray[np.float32]:
        logits = super().forward(cache, rows).copy()
        if len(rows) == 1:
            logits[0, 7] = np.nextafter(logits[0, 7], np.float32(np.inf))
        return logits


def test_a_device_whose_rows_depend_on_their_number_is_found(tiny_model: Path) -> None:
    assert not probe_row_invariance(LastBitByCompany.load(tiny_model))
