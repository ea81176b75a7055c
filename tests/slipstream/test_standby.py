"""A process that stands by: it prepares before it is asked, and is asked over its standard input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slipstream.standby import FLAG, READY

SERVICE = """
import os, sys
from slipstream.standby import stand_by
stand_by(lambda: print("prepared"))
print(sys.argv[1:], os.read(0, 1) == b"")
"""


def run(*arguments, told):
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, *arguments], input=told, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [[], ["--port", "1", "--name", "a b\\n"]])
def test_one_that_stands_by_takes_its_arguments_from_a_line_and_reads_no_further(arguments):
    assert run(FLAG, told=json.dumps(arguments) + "\nmore\n") == ["prepared", READY, f"{arguments} True"]


def test_it_ends_in_peace_where_no_arguments_come():
    assert run(FLAG, told="") == ["prepared", READY]


def test_one_that_is_told_more_starts_at_once():
    assert run(FLAG, "--port", told="") == [f"{[FLAG, '--port']} True"]
