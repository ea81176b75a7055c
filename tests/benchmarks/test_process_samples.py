import os
import subprocess
import sys
import threading

from benchmarks.process_samples import sample_process, sample_processes


def test_a_process_is_seen_as_it_is():
    before = sample_process(os.getpid(), proportional=True)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    touched = bytearray(os.urandom(16 << 20))
    try:
        after = sample_process(os.getpid())
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for file in files:
            os.close(file)
    assert after.descriptors - before.descriptors == 5
    assert after.threads - before.threads == 3
    assert after.rss - before.rss > len(touched) // 2
    assert 0 < before.pss <= before.rss * 1.05
    assert after.pss is None
    assert after.cpu_seconds >= before.cpu_seconds > 0


def test_one_that_has_ended_is_left_out():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert sample_process(process.pid) is None
    assert set(sample_processes({"gone": process.pid, "here": os.getpid()})) == {"here"}
