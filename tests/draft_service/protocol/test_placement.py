"""Where proposers compute, of what the operator asks and what there is."""

from __future__ import annotations

import pytest

from draft_service.protocol import placement
from draft_service.protocol.placement import Placement, settle
from slipstream.rpc.errors import FailedPreconditionError

GPUS = ("GPU-0a", "GPU-0b")


@pytest.mark.parametrize(
    ("wanted", "settled"),
    [
        ("auto", Placement("cuda:0", "GPU-0a")),
        ("cpu", Placement("cpu")),
        ("cuda", Placement("cuda:0", "GPU-0a")),
        ("cuda:1", Placement("cuda:1", "GPU-0b", mps=True)),
    ],
)
def test_a_gpu_is_named_by_number_and_uuid(wanted: str, settled: Placement, monkeypatch) -> None:
    monkeypatch.setattr(placement, "gpu_uuids", lambda: GPUS)
    monkeypatch.setattr(placement, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(placement, "is_mps_client", lambda index: index == 1)
    assert settle(wanted) == settled


def test_what_is_not_there_is_refused_but_not_by_auto(monkeypatch) -> None:
    monkeypatch.setattr(placement, "gpu_uuids", lambda: GPUS)
    monkeypatch.setattr(placement, "_torch_has_cuda", lambda: True)
    with pytest.raises(FailedPreconditionError, match="--device cuda:2 is not available: there are 2 GPUs"):
        settle("cuda:2")
    monkeypatch.setattr(placement, "_torch_has_cuda", lambda: False)
    with pytest.raises(FailedPreconditionError, match="no PyTorch with CUDA"):
        settle("cuda")
    assert settle("auto") == Placement("cpu")
