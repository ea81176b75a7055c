from __future__ import annotations

import dataclasses

import numpy as np

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.parallel.tp_broadcast import LineChange, PagesChange, StepMessage
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def assert_equal(found: object, expected: object) -> None:
    """Dataclasses equal field by field, arrays with their dtype and shape."""
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_equal(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    else:
        assert type(found) is type(expected)
        assert found == expected


def test_bytes_hold_everything() -> None:
    limits = GpuLimits(num_pages=20, max_context=256)
    tree = TokenTree((7, 8, 9), (-1, 0, -1))
    plan = pass_of(limits, [Span(0, [3, 4, 5], 10, [1, 2]), Span(2, [-1], 15, [5], tree)])
    bias = np.array([0.5, -np.inf], np.float32)
    plan = dataclasses.replace(plan, choices=np.arange(16, dtype=np.int32).reshape(2, 8))
    plan = dataclasses.replace(plan, scored=np.arange(6, dtype=np.int32).reshape(2, 3))
    message = StepMessage(
        (
            LineChange(3, int32(*range(16)), int32(1, 2, 3), int32(), int32(5, 6), bias, None, 2),
            LineChange(0, int32(*range(-16, 0)), None, None, None, None, int32(2), -1),
        ),
        (PagesChange(1, 4, int32(9, 8)), PagesChange(2, 0, int32())),
        dataclasses.replace(plan, keep_logits=False),
    )
    assert message.plan.has_trees
    assert_equal(StepMessage.from_bytes(message.to_bytes()), message)


def test_an_empty_pass() -> None:
    message = StepMessage((), (), PassPlan.empty())
    assert_equal(StepMessage.from_bytes(message.to_bytes()), message)
