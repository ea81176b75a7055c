"""Bars where they can be seen, few lines where they are kept."""

from __future__ import annotations

import io
import os
import pty

import pytest

from slipstream_kernels.progress import ProgressBar


def lines_of(output: io.StringIO) -> list[str]:
    text = output.getvalue()
    assert "\r" not in text
    assert text.endswith("\n")
    return text.splitlines()


@pytest.mark.parametrize("steps", [200, 3])
def test_a_file_gets_a_line_for_each_tenth_at_most(steps: int) -> None:
    output = io.StringIO()
    for _ in ProgressBar(range(steps), desc="steps", file=output, mininterval=0.0):
        pass
    lines = lines_of(output)
    assert len(lines) == min(10, steps) + 1
    assert lines[0].startswith("steps:   0%")
    assert lines[-1].startswith("steps: 100%")
    assert f" {steps}/{steps} " in lines[-1]


def test_what_is_done_at_once_has_its_beginning_and_its_end() -> None:
    output = io.StringIO()
    with ProgressBar(total=1000, desc="bytes", unit="B", unit_scale=True, file=output, leave=False) as bar:
        bar.set_postfix_str("last", refresh=False)
        bar.update(1000)
    lines = lines_of(output)
    assert [line[:11] for line in lines] == ["bytes:   0%", "bytes: 100%"]
    assert lines[-1].endswith("last]")


def test_one_that_is_cut_short_says_how_far_it_came_and_one_without_an_end_its_count() -> None:
    output = io.StringIO()
    with ProgressBar(total=100, file=output, mininterval=0.0) as bar:
        bar.update(57)
    assert lines_of(output)[-1].startswith(" 57%")
    output = io.StringIO()
    with ProgressBar(desc="lines", file=output, mininterval=0.0) as bar:
        for _ in range(50):
            bar.update()
    lines = lines_of(output)
    assert len(lines) == 2
    assert lines[-1].startswith("lines: 50it")


def test_a_terminal_has_a_bar_and_nobody_who_wants_none_has_either() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        with ProgressBar(total=2, desc="steps", file=terminal) as bar:
            bar.update(2)
        assert b"\r" in os.read(master, 4096)
    os.close(master)
    output = io.StringIO()
    for _ in ProgressBar(range(3), file=output, disable=True):
        pass
    assert output.getvalue() == ""
