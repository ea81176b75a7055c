import os
import subprocess
import sys

from benchmarks.lib.process_samples import sample_process, sample_processes

CHILD = """
import os, threading
print(flush=True)
input()
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
over = threading.Event()
for _ in range(3):
    threading.Thread(target=over.wait, daemon=True).start()
touched = bytearray(os.urandom(16 << 20))
print(flush=True)
input()
"""


def test_a_process_is_seen_as_it_is():
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        before = sample_process(child.pid, proportional=True)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = sample_process(child.pid)
        child.stdin.write("\n")
    assert after.descriptors - before.descriptors == 5
    assert after.threads - before.threads == 3
    assert after.rss - before.rss > 8 << 20
    assert 0 < before.pss <= before.rss * 1.05
    assert after.pss is None
    assert after.cpu_seconds >= before.cpu_seconds >= 0


def test_one_that_has_ended_is_left_out():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert sample_process(process.pid) is None
    assert set(sample_processes({"gone": process.pid, "here": os.getpid()})) == {"here"}
