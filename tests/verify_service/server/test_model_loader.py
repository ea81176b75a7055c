"""What is made sure of before the service says that it is ready."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import Capture
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.paged_kv import PagedKV
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.quantised_models import FORMS, write_quantised
from verify_service.config import VerifySettings
from verify_service.server import model_loader as loading


class LastBitByCompany(CausalLM):
    """Changes the last bit of one logit in passes of one row."""

    __slots__ = ()

    def forward(self, cache: PagedKV, rows: RowBatch, capture: Capture | None = None) -> npt.NDArray[np.float32]:
        logits = super().forward(cache, rows, capture).copy()
        if len(rows) == 1:
            logits[0, 7] = np.nextafter(logits[0, 7], np.float32(np.inf))
        return logits


def settings(model: Path, **given: Any) -> VerifySettings:
    return VerifySettings(**({"model": model, "num_pages": 64, "threads": 1} | given))


def test_a_model_whose_rows_keep_their_bits_is_loaded(tiny_model: Path) -> None:
    loaded = loading.load(settings(tiny_model, max_context=200))
    assert (loaded.num_pages, loaded.max_context) == (64, 200)
    assert loaded.model.config.vocab_size > 0
    assert loading.load(settings(tiny_model)).max_context == loaded.model.config.max_context
    with pytest.raises(FailedPreconditionError, match="0 to 3"):
        loading.load(settings(tiny_model, feature_boundaries=(3, 4)))


def test_a_hubs_name_is_no_folder() -> None:
    with pytest.raises(FailedPreconditionError, match=r"--model: no such folder: org/name; .*`hf download org/name "):
        loading.load(settings(Path("org/name")))


def test_a_model_whose_rows_depend_on_their_company_is_not_served(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CausalLM", LastBitByCompany)
    with pytest.raises(FailedPreconditionError, match=r"device 'cpu'.* depend on its neighbours"):
        loading.load(settings(tiny_model))


def test_a_context_beyond_the_model_is_refused(tiny_model: Path) -> None:
    with pytest.raises(FailedPreconditionError, match=r"--max-context is 600, the model's context is 512"):
        loading.load(settings(tiny_model, max_context=600))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_missing_gpu_is_said(tiny_model: Path, device: str) -> None:
    with pytest.raises(FailedPreconditionError, match=rf"--device {device} is not available: PyTorch "):
        loading.load(settings(tiny_model, device=device))


def test_missing_triton_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(FailedPreconditionError, match=r"--device cuda needs the package triton: install"):
        loading.load(settings(tiny_model, device="cuda"))
    with pytest.raises(FailedPreconditionError, match=r"--tensor-parallel-size 2 needs the package triton: install"):
        loading.load(settings(tiny_model, tensor_parallel_size=2))


@pytest.mark.skipif(find_spec("flashinfer") is not None, reason="FlashInfer is installed")
def test_missing_flashinfer_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_check_cuda", lambda settings, form: None)
    message = r"needs the package flashinfer-python .* install 'slipstream-server\[gpu\]', or choose --attention triton"
    with pytest.raises(FailedPreconditionError, match=message):
        loading.load(settings(tiny_model, device="cuda", mode="fast", attention="flashinfer"))


def test_8_bits_that_a_gpu_cannot_read_are_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    with pytest.raises(
        FailedPreconditionError, match=r"--kv-cache-dtype fp8: .* capability 8.9 or later, cuda has 8.0"
    ):
        loading.load(settings(tiny_model, device="cuda", kv_cache_dtype="fp8"))


@pytest.mark.parametrize("capability", [(8, 9), (10, 0)])
def test_activations_that_a_gpu_cannot_multiply_are_refused(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    folder = write_quantised(tiny_model, tmp_path / "model", FORMS["float channel"])
    message = r"--linear-activations fp8 needs a GPU of compute capability 9.x \(Hopper\), cuda has "
    with pytest.raises(FailedPreconditionError, match=message):
        loading.load(settings(folder, device="cuda", linear_activations="fp8"))
    with pytest.raises(CheckpointError, match="--linear-activations fp8: no linear layer"):
        loading.load(settings(tiny_model, device="cuda", linear_activations="fp8"))


def test_a_cache_of_8_bits_is_told_and_takes_less(tiny_model: Path) -> None:
    loaded = [loading.load(settings(tiny_model, kv_cache_dtype=dtype, num_pages=4)) for dtype in ("auto", "fp8")]
    assert [each.kv_cache_dtype for each in loaded] == ["float32", "fp8_e4m3"]
    assert loaded[1].model.kv_bytes_per_token() * 64 * 4 == loaded[0].model.kv_bytes_per_token() * (64 + 4)


@pytest.mark.parametrize(("device", "needed"), [("cuda", 3), ("cuda:1", 4)])
def test_more_ranks_than_gpus_are_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, device: str, needed: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(FailedPreconditionError, match=rf"--tensor-parallel-size 3 .* needs {needed} GPUs, there are 2"):
        loading.load(settings(tiny_model, device=device, tensor_parallel_size=3))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ()),
        ({"proposers": ("medusa", "ngram")}, (3,)),
        ({"inproc": ("mtp:/models/head",), "feature_boundaries": (1,)}, (1, 3)),
        ({"proposers": ("medusa",), "feature_boundaries": (0,), "max_boundaries": 1}, ()),
        ({"proposers": ("eagle3",), "expected_proposers": ("eagle3:/models/head:boundaries=0-1-2",)}, (0, 1, 2)),
        ({"proposers": ("eagle3",)}, (1, 2)),  # two layers do not have all of its boundaries
    ],
)
def test_boundaries_that_configured_heads_usually_read_are_expected(
    tiny_model: Path, given: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert loading._expected_boundaries(settings(tiny_model, **given)) == expected


def test_a_service_on_the_cpu_imports_nothing_of_the_gpu() -> None:
    code = (
        "import sys, verify_service.server.server\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('triton', 'flashinfer') or '.gpu' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
