"""Log lines on a terminal, a pipe, one whose reader has left, and one whose reader sleeps."""

from __future__ import annotations

import io
import json
import os

from launcher.supervision.log_view import LogView
from slipstream.rpc.logs import json_line


def test_lines_stand_under_their_service():
    output = io.StringIO()
    with LogView(output) as view:
        view("draft", "attached")
    assert output.getvalue().split(" | ") == ["draft     ", "attached\n"]


def test_a_reader_that_has_left_stops_nobody():
    reading, writing = os.pipe()
    os.close(reading)
    pipe = io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)
    view = LogView(pipe)
    view("gateway", "first")
    assert view.flush(60)
    pipe.close()
    view("gateway", "second")
    assert view.flush(60)


def test_a_reader_that_sleeps_stops_nobody_and_is_told_what_it_missed():
    reading, writing = os.pipe()
    with io.FileIO(reading) as reader, io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True) as pipe:
        view = LogView(pipe, max_lines=100)
        view("verify", "x" * 2**17)  # more than a pipe holds
        while view._lines:  # until the writer has it
            pass
        for number in range(150):
            view("gateway", str(number))
        assert not view.flush(0.0)
        text = b""
        while b"were dropped" not in text:
            text += reader.read(2**16)
        assert view.flush(60)
    lines = text.decode().splitlines()
    assert lines[1:101] == [f"gateway    | {number}" for number in range(100)]
    assert "50 lines were dropped" in lines[101]


def test_as_json_every_line_is_an_object():
    output = io.StringIO()
    with LogView(output, style="json") as view:
        view("draft", own := json_line("draft", "attached"))
        view("verify", "Segmentation fault")
        view("slipstream", "draining")
    first, *others = output.getvalue().splitlines()
    assert first == own
    assert [(line["service"], line["message"]) for line in map(json.loads, others)] == [
        ("verify", "Segmentation fault"),
        ("slipstream", "draining"),
    ]
