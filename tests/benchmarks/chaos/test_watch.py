import math

from benchmarks.chaos.watch import Looks, ends_of_services, lived_through, tracebacks
from benchmarks.lib.process_samples import ProcessSample

LOG = """\
slipstream | starting verify, draft, gateway
verify     | 2026-11-22 17:47:09.382 INFO    verify: ready grpc=55339 metrics=0
verify     | was ended by SIGKILL; starts again in 0.5 s
gateway    | 2026-11-22 17:47:19.707 ERROR   gateway: unexpected error in a request
gateway    | Traceback (most recent call last):
gateway    |   File "x.py", line 1, in f
draft      | exited with status 1; starts again in 1.0 s
gateway    |     raise KeyError
gateway    | KeyError
gateway    |
gateway    | During handling of the above exception, another exception occurred:
gateway    |
gateway    | Traceback (most recent call last):
gateway    |   File "x.py", line 2, in f
gateway    | ValueError: of a request
verify     | exited with status 3; given up after 10 short runs in a row
"""


def test_ends_of_services_are_read_from_the_launchers_log():
    assert ends_of_services(LOG) == [
        ("verify", "was ended by SIGKILL"),
        ("draft", "exited with status 1"),
        ("verify", "exited with status 3"),
    ]


def test_tracebacks_are_counted_by_their_last_line():
    assert tracebacks(LOG) == {"gateway: KeyError": 1, "gateway: ValueError: of a request": 1}
    assert tracebacks("") == {}


def test_time_up_lies_between_answered_looks():
    looks = Looks([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [True, True, True, False, True, True])
    assert looks.up_seconds(0.0, 5.0) == 3.0
    assert looks.up_seconds(0.5, 4.0) == 1.0
    assert looks.falls() == [3.0]
    assert looks.next_up(2.0) == 4.0
    assert looks.next_up(5.0) == math.inf


def test_a_process_lives_through_samples_that_have_its_number():
    one, other = (ProcessSample(0.0, pid, 1, None, 1, 1, 0.0) for pid in (7, 8))
    assert lived_through([{"verify": one}, {}, {"verify": one}], "verify")
    assert not lived_through([{"verify": one}, {"verify": other}], "verify")
    assert not lived_through([{}], "verify")
