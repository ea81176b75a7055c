"""What is compiled ahead is what a loop on a GPU calls: nothing is left to compile in its first steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream_kernels.draft_protocol import tree_wire
from slipstream_kernels.jit.compile_turns import NotOnDiskError
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


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What is called, in order, where the disk has the code or not and another process compiles as `command` does."""

    def begin(*, on_disk: bool, command: str = "") -> list[str]:
        called: list[str] = []
        run = subprocess.run

        def compiles() -> None:
            called.append("here")
            if not on_disk and called == ["here"]:
                raise NotOnDiskError("a function")

        def noted(*given: object, **options: object) -> object:
            called.append("elsewhere")
            return run(*given, **options)  # type: ignore[call-overload]

        monkeypatch.setattr(host_kernels, "_COMMAND", (sys.executable, "-c", command))
        monkeypatch.setattr(host_kernels, "compile_all", compiles)
        monkeypatch.setattr(subprocess, "run", noted)
        begin_compiling().join()
        return called

    return begin


def test_what_the_disk_has_is_read_here(begun: Callable[..., list[str]]) -> None:
    assert begun(on_disk=True) == ["here"]


def test_what_it_has_not_is_compiled_by_another_process_first(begun: Callable[..., list[str]]) -> None:
    assert begun(on_disk=False) == ["here", "elsewhere", "here"]


@pytest.mark.parametrize(
    ("command", "reason"), [("raise SystemExit('no room')", "no room"), ("import time; time.sleep(60)", "timed out")]
)
def test_one_that_fails_or_hangs_leaves_it_to_this_process(
    begun: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    reason: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(host_kernels, "LONGEST_SECONDS", 0.5)
    assert begun(on_disk=False, command=command) == ["here", "elsewhere", "here"]
    assert reason in caplog.text


@pytest.mark.slow
def test_another_process_leaves_all_of_it_on_the_disk(tmp_path: Path) -> None:
    """It is started where the disk lacks all of it or a part, and then alone."""
    code = (
        "import subprocess\n"
        "from slipstream_kernels.draft_protocol import tree_wire\n"
        "from slipstream_kernels.models.gpu.batch import plan_kernels\n"
        "from verify_service.server import host_kernels\n"
        "run, started = subprocess.run, []\n"
        "subprocess.run = lambda *given, **options: started.append(0) or run(*given, **options)\n"
        "host_kernels._compile()\n"
        "print(len(started))\n"
        "for function in (plan_kernels.pack_pass, tree_wire._read):\n"
        "    print(sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values()))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("1", "0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stdout.split() == [expected, *["1", "0"] * 2], done.stderr
        if expected == "0":
            (code_of_one,) = tmp_path.rglob("tree_wire._read-*.nbc")
            code_of_one.unlink()
