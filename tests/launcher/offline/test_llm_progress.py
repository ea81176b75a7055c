"""How far a batch is, on what is no terminal."""

from __future__ import annotations

import io

from launcher.offline.llm import _bar


def test_a_file_is_not_written_at_every_answer(monkeypatch):
    output = io.StringIO()
    monkeypatch.setattr("sys.stderr", output)
    with _bar(True, 100) as bar:
        bar.mininterval = 0.0
        for _ in range(100):
            bar.update()
    assert 10 <= output.getvalue().count("\r") <= 12
