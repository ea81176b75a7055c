"""The number of KV pages: chosen within stated caps, refused with figures."""

from __future__ import annotations

import pytest

from slipstream.rpc.errors import FailedPreconditionError
from verify_service.server.memory_plan import MAX_AUTO_BYTES, check_feature_memory, plan_memory

MIB = 1 << 20


def pages(num_pages: int = 0, available: int = 64 * 1024 * MIB, max_running: int = 4, kv_bytes: int = 8192) -> int:
    plan = plan_memory(
        num_pages=num_pages,
        page_size=16,
        kv_bytes_per_token=kv_bytes,
        max_context=4096,
        max_running=max_running,
        max_nodes=64,
        available=available,
    )
    assert plan.page_bytes == plan.num_pages * 16 * kv_bytes
    assert plan.page_bytes + plan.scratch_bytes <= available
    return plan.num_pages


def test_full_contexts_where_memory_is_plenty() -> None:
    assert pages() == 4 * 4096 // 16


def test_the_caps_hold() -> None:
    assert pages(max_running=1000) == MAX_AUTO_BYTES // (16 * 8192)
    assert pages(available=256 * MIB) == 128 * MIB // (16 * 8192)


def test_one_context_fits_at_least() -> None:
    assert pages(available=40 * MIB) == 4096 // 16


@pytest.mark.parametrize(("num_pages", "available"), [(0, 20 * MIB), (10_000, 1024 * MIB)])
def test_what_does_not_fit_is_refused_with_figures(num_pages: int, available: int) -> None:
    with pytest.raises(FailedPreconditionError, match=rf"KV pages of .* MiB .*{available // MIB}\.0 MiB available"):
        pages(num_pages, available)


def test_states_beside_the_pages_are_planned_with_them() -> None:
    sizes = {"num_pages": 64, "page_size": 16, "kv_bytes_per_token": 8192, "max_context": 512, "max_running": 1}
    plan = plan_memory(**sizes, max_nodes=1, feature_bytes=3 * MIB, available=11 * MIB)
    assert plan.needed_bytes == 11 * MIB
    assert "hidden states up to 3.0 MiB" in str(plan)
    with pytest.raises(FailedPreconditionError, match="feature-memory-mib"):
        plan_memory(**sizes, max_nodes=1, feature_bytes=4 * MIB, available=11 * MIB)


def test_adapters_are_planned_and_leave_the_pages_what_is_left() -> None:
    sizes = {"page_size": 16, "kv_bytes_per_token": 8192, "max_context": 512, "max_running": 1, "max_nodes": 1}
    plan = plan_memory(num_pages=64, **sizes, adapter_bytes=2 * MIB, available=10 * MIB)
    assert plan.needed_bytes == 10 * MIB and "adapters up to 2.0 MiB, 10.0 MiB available" in str(plan)
    with pytest.raises(FailedPreconditionError, match=r"adapters up to 3\.0 MiB, .*--max-loras or"):
        plan_memory(num_pages=64, **sizes, adapter_bytes=3 * MIB, available=10 * MIB)
    many = sizes | {"max_running": 100}
    assert plan_memory(num_pages=0, **many, adapter_bytes=60 * MIB, available=100 * MIB).page_bytes == 20 * MIB


def test_the_host_of_a_gpu_must_hold_the_states() -> None:
    assert "hidden states up to 5.0 MiB" in check_feature_memory(5 * MIB, 6 * MIB)
    with pytest.raises(FailedPreconditionError, match=r"7\.0 MiB, 6\.0 MiB of the host's memory"):
        check_feature_memory(7 * MIB, 6 * MIB)
