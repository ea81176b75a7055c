"""Users, in a process of their own: they patch the standard library."""

from __future__ import annotations

import subprocess
import sys

FAILING = """
from types import SimpleNamespace
from loadtest import users

class Failing(users.StreamUser):
    api = "http"
    asking = SimpleNamespace(conversations=iter([[], []]))

    def ask(self, conversation):
        raise ConnectionRefusedError("nobody there")

fired, slept = [], []
users.time.sleep = slept.append
user = object.__new__(Failing)
request = SimpleNamespace(fire=lambda **told: fired.append(told))
user.environment = SimpleNamespace(events=SimpleNamespace(request=request))
user.chat()
user.chat()
print([(told["name"], str(told["exception"])) for told in fired], slept == 2 * [users.PAUSE_SECONDS])
"""


def test_a_user_whose_request_has_failed_waits_before_the_next_one():
    run = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.splitlines()[-1] == "[('chat', 'nobody there'), ('chat', 'nobody there')] True"
