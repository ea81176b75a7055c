"""What is compiled ahead is what a loop on a GPU calls: nothing is left to compile in its first steps."""

from __future__ import annotations

import pytest

from slipstream_kernels.draft_protocol import tree_wire
from slipstream_kernels.models.gpu.batch import outcome_plan, plan_kernels
from verify_service.server import host_kernels
from verify_service.server.host_kernels import begin_compiling, compile_all

pytest.importorskip("triton")


def test_all_functions_that_lay_out_a_pass_are_there() -> None:
    compile_all()
    for function in (
        plan_kernels.pad,
        plan_kernels.pack_pass,
        plan_kernels.count_rows,
        plan_kernels.lay_rows,
        plan_kernels.plan_items,
        plan_kernels.committed_rows,
        plan_kernels.in_order,
        outcome_plan.pack_outcomes,
        tree_wire._read,
    ):
        assert function.signatures, function.__name__


def test_a_failure_is_left_to_who_needs_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("no compiler")

    monkeypatch.setattr(host_kernels, "compile_all", fails)
    begin_compiling().join()
    assert "host kernels are not compiled ahead" in caplog.text
