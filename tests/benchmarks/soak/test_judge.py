from dataclasses import replace

import pytest

from benchmarks.lib.mixed_client import ClientOutcome, Failure
from benchmarks.lib.process_samples import ProcessSample
from benchmarks.lib.request_mix import Manner, Question
from benchmarks.soak import tables
from benchmarks.soak.judge import DEVICE, Bounds, Look, judge, slope
from benchmarks.soak.load import Request
from benchmarks.soak.windows import MOST_WINDOWS, windows_of

HOUR = 3600.0
MIB = 1 << 20
BOUNDS = Bounds(memory_mib_per_hour=32.0)


def sample(at, *, pid=7, rss=500.0, descriptors=20, threads=9):
    return ProcessSample(at, pid, int(rss * MIB), None, descriptors, threads, at / 2)


def looks_of(change=lambda share, one: one, *, device=lambda share: 0, every=30.0):
    """An hour of samples. `change` of each, by the share of the hour that has passed, and `device` in MiB."""
    looks = []
    for index in range(int(HOUR / every)):
        at, share = index * every, index * every / HOUR
        looks.append(Look(at, {"gateway": change(share, sample(at))}, device(share) * MIB, 3))
    return looks


def requests_of(ttft=lambda share: 0.1, tpot=lambda share: 0.02, failure=lambda index: None):
    return [
        Request(at, 50, ttft(at / HOUR), tpot(at / HOUR), failure(index))
        for index, at in enumerate(range(1, int(HOUR), 10))
    ]


def idle_of(before=None, after=None):
    samples = before or sample(-9.0), after or sample(HOUR + 9)
    return tuple(Look(each.at, {"gateway": each}, 0, 0) for each in samples)


def judged(looks=None, requests=None, bounds=BOUNDS, idle=None):
    return judge(looks or looks_of(), requests or requests_of(), (0.0, HOUR), idle or idle_of(), bounds)


def broken(*arguments, **fields):
    return judged(*arguments, **fields)[1]


def test_what_stays_as_it_is_is_flat():
    assert broken() == []


def test_growth_at_first_is_none():
    """Memory that is touched for the first time."""
    assert broken(looks_of(lambda share, one: replace(one, rss=int((500 + min(200, 800 * share)) * MIB)))) == []


def test_a_planted_slope_is_found():
    def grows(by):
        return looks_of(lambda share, one: replace(one, rss=int((500 + by * share) * MIB)))

    assert broken(grows(30)) == []
    assert broken(grows(40)) == ["memory of gateway grows by 40 MiB an hour"]
    assert broken(grows(40), bounds=Bounds(memory_mib_per_hour=50.0)) == []
    # Steep, but of a size that an allocator takes at once.
    assert broken(grows(12), bounds=Bounds(memory_mib_per_hour=1.0)) == []


def test_a_planted_slope_of_the_gpus_memory_is_found():
    assert broken(looks_of(device=lambda share: 90_000)) == []
    (blamed,) = broken(looks_of(device=lambda share: int(90_000 + 200 * share)))
    assert blamed.startswith(f"memory of {DEVICE} grows by")
    # Whatever comes and goes, if late more often than early.
    assert broken(looks_of(device=lambda share: 90_000 + 800 * (int(share * 1000) % 7 < 8 * share - 3))) == []


def test_planted_leaks_of_descriptors_and_threads_are_found():
    leaking = looks_of(lambda share, one: replace(one, descriptors=20 + int(20 * share)))
    assert broken(leaking) == ["descriptors of gateway grow from 25 to 35"]
    # Of connections that come and go the least number counts.
    coming = looks_of(lambda share, one: replace(one, descriptors=20 + int(one.at) % 70))
    assert broken(coming) == []
    assert broken(looks_of(lambda share, one: replace(one, threads=9 + int(10 * share)))) == [
        "threads of gateway grow from 11 to 16"
    ]


def test_what_is_held_without_load_counts_from_before_it():
    assert broken(idle=idle_of(after=sample(9, descriptors=24, threads=11))) == []
    assert broken(idle=idle_of(after=sample(9, descriptors=25))) == [
        "descriptors of gateway without load: 20 before, 25 afterwards"
    ]
    assert broken(idle=idle_of(after=sample(9, threads=12))) == [
        "threads of gateway without load: 9 before, 12 afterwards"
    ]


def test_a_process_that_ends_is_found():
    assert broken(looks_of(lambda share, one: replace(one, pid=7 + (share > 0.6)))) == ["gateway ended"]
    assert broken(idle=idle_of(after=sample(9, pid=8))) == ["gateway ended"]
    looks = looks_of()
    looks[50] = replace(looks[50], processes={})
    assert broken(looks) == ["gateway ended"]


def test_latency_that_grows_is_found():
    assert broken(requests=requests_of(ttft=lambda share: 0.1 * (1 + 0.2 * share))) == []
    blamed = broken(requests=requests_of(ttft=lambda share: 0.1 * (1 + 2 * share)))
    assert blamed[0] == "ttft_ms p50 went from 175.06 to 275.06"
    slow_end = requests_of(tpot=lambda share: 0.2 if share > 0.75 and int(share * HOUR) % 100 == 1 else 0.02)
    assert broken(requests=slow_end) == ["tpot_ms p99 went from 20 to 200"]
    assert "no ttft_ms in a quarter" in broken(requests=requests_of(ttft=lambda share: None))


def test_failures_are_found():
    some = requests_of(failure=lambda index: "INTERNAL" if index in (7, 9) else None)
    assert broken(requests=some) == ["2 requests failed"]
    assert broken(requests=some, bounds=Bounds(failures=2)) == []
    assert "no answers" in broken(requests=requests_of(failure=lambda index: "SHED"))


def test_too_few_samples_are_no_judgment():
    with pytest.raises(ValueError, match="too few samples"):
        judged(looks_of(every=700.0))


def test_the_slope_is_that_of_the_line():
    assert slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0]) == pytest.approx(2.0)
    assert slope([1.0, 1.0], [1.0, 3.0]) == 0.0


def test_windows_are_few_and_lose_no_request():
    looks, requests = looks_of(every=5.0), requests_of(failure=lambda index: "SHED" if index == 3 else None)
    windows = windows_of(looks, requests, (0.0, HOUR))
    count = len(windows["seconds"])
    assert count == MOST_WINDOWS
    assert windows["seconds"][-1] == HOUR
    assert sum(windows["failed"]) == 1
    assert sum(windows["tokens_per_second"]) * HOUR / count == pytest.approx(50 * len(requests), rel=0.01)
    assert {len(windows[name]) for name in ("tokens_per_second", "in_flight")} == {count}
    assert len(windows["ttft_ms"]["p99"]) == len(windows["processes"]["gateway"]["rss_mib"]) == count


def test_tables_and_picture_show_all_processes(tmp_path):
    looks = looks_of(device=lambda share: 90_000)
    facts, _ = judged(looks)
    text = tables.text(facts)
    assert "| gateway " in text
    assert f"| {DEVICE} " in text
    tables.plot(tmp_path / "soak.png", windows_of(looks, requests_of(), (0.0, HOUR)))
    assert (tmp_path / "soak.png").stat().st_size > 1000


def outcome(*, streamed=True, reading="steadily", failure=None, n=1):
    question = Question(0, "completions", "Why?", {"max_tokens": 5}, n=n)
    return ClientOutcome(question, Manner(None, streamed, reading), 1.0, 4.0, [2.0, 3.0, 4.0], [2, 4, 4], [], failure)


def test_times_are_those_of_streams_that_are_read_steadily():
    assert Request.of(outcome()) == (4.0, 10, 1.0, pytest.approx(2 / 9), None)
    assert Request.of(outcome(n=2)).tpot == pytest.approx(2 / 4)
    for other in (outcome(streamed=False), outcome(reading="slowly"), outcome(reading="leaves")):
        assert Request.of(other)[2:] == (None, None, None)
    assert Request.of(outcome(failure=Failure("INTERNAL", ""))) == (4.0, 10, None, None, "INTERNAL")
