"""A process ends orderly though threads of it are at work on grammars."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUSY = """
import atexit, itertools, json, logging, sys, threading, time
from slipstream.grammar.check import check
from slipstream.grammar.deep_stack import end_process
from slipstream.grammar.grammar import Grammar

patterns = [{"type": "string", "pattern": f"a.{{{number}}}b"} for number in range(1, 60)]
endless = Grammar(json_schema=json.dumps({"allOf": patterns}))
short = Grammar(lark="start: r0\\n" + "\\n".join(f"r{n}: r{n + 1} r{n + 1}?" for n in range(300)) + '\\nr300: "z"')

def work():
    while True:
        check(short)

threading.Thread(target=check, args=(endless,), daemon=True).start()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
atexit.register(print, "told")
print("at work:", sum(thread.name == "grammar" for thread in threading.enumerate()) > 0)
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_ends_while_grammars_are_compiled(status: int) -> None:
    script = f"{BUSY}\nend_process({status})"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "at work: True\ntold\n"), done.stderr
