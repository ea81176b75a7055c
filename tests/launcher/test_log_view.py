"""Log lines on a terminal, a pipe, and one whose reader has left."""

from __future__ import annotations

import io
import os

from launcher.log_view import LogView


def test_lines_stand_under_their_service():
    output = io.StringIO()
    LogView(output)("draft", "attached")
    assert output.getvalue().split(" | ") == ["draft     ", "attached\n"]


def test_a_reader_that_has_left_stops_nobody():
    reading, writing = os.pipe()
    os.close(reading)
    pipe = io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)
    view = LogView(pipe)
    view("gateway", "first")
    pipe.close()
    view("gateway", "second")
