"""What is made sure of before the service says that it is ready."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.causal_lm import CausalLM
from slipstream_kernels.models.row_batch import RowBatch
from slipstream_kernels.paged_kv import PagedKV
from verify_service import serving
from verify_service.config import VerifySettings


class LastBitByCompany(CausalLM):
    """Changes the last bit of one logit in passes of one row."""

    __slots__ = ()

    def forward(self, cache: PagedKV, rows: RowBatch) -> npt.NDArray[np.float32]:
        logits = super().forward(cache, rows).copy()
        if len(rows) == 1:
            logits[0, 7] = np.nextafter(logits[0, 7], np.float32(np.inf))
        return logits


def settings(model: Path) -> VerifySettings:
    return VerifySettings(model=model, num_pages=64, threads=1)


def test_a_model_whose_rows_keep_their_bits_is_loaded(tiny_model: Path) -> None:
    loaded = serving._load(settings(tiny_model))
    assert loaded.memory.num_pages == 64
    assert loaded.model.config.vocab_size > 0


def test_a_model_whose_rows_depend_on_their_company_is_not_served(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CausalLM", LastBitByCompany)
    with pytest.raises(FailedPreconditionError, match=r"device 'cpu'.* depend on its neighbours"):
        serving._load(settings(tiny_model))
