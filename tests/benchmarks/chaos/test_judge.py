from dataclasses import replace

import pytest

from benchmarks.chaos import tables
from benchmarks.chaos.events import Event
from benchmarks.chaos.judge import Bounds, Run, judge, losses_of_verify, silence_of
from benchmarks.chaos.traffic import Answers
from benchmarks.chaos.watch import Looks
from benchmarks.lib.mixed_client import Choice, ClientOutcome, Failure
from benchmarks.lib.process_samples import ProcessSample
from benchmarks.lib.request_mix import Manner, Question

BOUNDS = Bounds(silence_seconds=65.0, least_goodput=0.5)
STREAMED, WHOLE = Manner(None, streamed=True), Manner(None, streamed=False)
MIB = 1 << 20


def question(api="completions", number=0):
    return Question(number, api, "Why?", {"max_tokens": 3})


def outcome(*, api="completions", manner=STREAMED, arrivals=(1.0, 2.0, 3.0), failure=None, ended=3.0):
    return ClientOutcome(question(api), manner, 0.0, ended, list(arrivals), [1] * len(arrivals), failure=failure)


def failed(code, *, api="grpc", retry_after=None, in_stream=False, ended=3.0):
    failure = Failure(code, "as planted", retry_after, in_stream)
    return outcome(api=api, arrivals=(1.0,), failure=failure, ended=ended)


def sample(pid=7, rss=100 * MIB, descriptors=20, threads=9):
    return ProcessSample(0.0, pid, rss, None, descriptors, threads, 0.0)


def looks(*up):
    return Looks([float(at) for at in range(len(up))], list(up))


def run_of(*outcomes, **fields):
    fine = Run(
        outcomes=[outcome(), *outcomes],
        differing=0,
        calm_rate=0.9,
        storm_seconds=(0.0, 3.0),
        verify=looks(True, True, True, True),
        gateway=looks(True, True, True, True),
        before={"gateway": sample()},
        during=[{"gateway": sample()}] * 4,
        after={"gateway": sample()},
        left={"KV pages": 0},
    )
    return replace(fine, **fields)


def broken(run):
    return judge(run, BOUNDS)[1]


def test_a_run_that_keeps_all_promises_is_not_blamed():
    allowed = failed("UNAVAILABLE", retry_after=1.0), failed("RESOURCE_EXHAUSTED", retry_after=2.0)
    assert broken(run_of(*allowed, ends=[("verify", "was ended by SIGKILL")])) == []


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"differing": 1}, "answers differ"),
        ({"outcomes": []}, "no answers"),
        ({"left": {"KV pages": 3}}, "left behind"),
        ({"complete": False}, "not all services were there in the end"),
        ({"calm_rate": 3.0}, "goodput"),
        ({"verify": looks(False, False, False, False)}, "goodput"),
        ({"ends": [("verify", "exited with status 1")]}, "ended by themselves: verify exited with status 1"),
        ({"tracebacks": {"gateway: ValueError": 1}}, "tracebacks"),
        ({"after": {"gateway": sample(descriptors=25)}}, "grown: descriptors of gateway"),
        ({"after": {"gateway": sample(threads=18)}}, "grown: threads of gateway"),
        ({"after": {"gateway": sample(rss=133 * MIB)}}, "grown: memory of gateway"),
        ({"killer_asked": True}, "killer"),
        ({"killer_asked": True, "killers": [failed("UNAVAILABLE")]}, "killer"),
        ({"killer_asked": True, "killers": [failed("INTERNAL"), outcome()]}, "killer"),
    ],
)
def test_each_broken_promise_is_named(fields, blamed):
    assert blamed in broken(run_of(**fields))


def test_a_killer_that_ends_as_an_internal_error_is_as_promised():
    assert broken(run_of(killer_asked=True, killers=[failed("INTERNAL")])) == []


@pytest.mark.parametrize("code", ["INTERNAL", "CONNECTION", "SILENT", "MALFORMED", "INVALID_ARGUMENT", "CANCELLED"])
def test_other_errors_than_those_of_a_busy_server_are_not_allowed(code):
    facts, blamed = judge(run_of(failed(code, retry_after=1.0)), BOUNDS)
    assert blamed == ["errors that are not allowed"]
    assert facts["requests"]["errors"] == {code: 1}
    assert "as planted" in facts["requests"]["examples"][0]


def test_an_error_says_when_to_come_back_unless_an_answer_over_http_has_begun():
    assert broken(run_of(failed("UNAVAILABLE"))) == ["errors without Retry-After"]
    assert broken(run_of(failed("UNAVAILABLE", api="completions"))) == ["errors without Retry-After"]
    assert broken(run_of(failed("UNAVAILABLE", in_stream=True))) == ["errors without Retry-After"]
    assert broken(run_of(failed("UNAVAILABLE", api="completions", in_stream=True))) == []


def test_what_a_killed_gateway_broke_off_is_counted_apart():
    kill = Event("kill", "gateway", 1.5)
    facts, blamed = judge(run_of(failed("CONNECTION"), failed("UNAVAILABLE"), events=[kill]), BOUNDS)
    assert blamed == []
    assert facts["requests"]["broken_off_with_the_gateway"] == 2
    # One that was over before has no such excuse, nor has an internal error.
    assert broken(run_of(failed("CONNECTION", ended=1.2), events=[kill])) == ["errors that are not allowed"]
    assert broken(run_of(failed("INTERNAL"), events=[kill])) == ["errors that are not allowed"]


def test_a_stream_may_be_silent_for_so_long():
    assert broken(run_of(outcome(arrivals=(1.0, 66.0), ended=66.0))) == []
    assert broken(run_of(outcome(arrivals=(1.0, 66.1), ended=66.1))) == ["no progress in time"]
    assert broken(run_of(outcome(arrivals=(1.0, 2.0), ended=68.0))) == ["no progress in time"]
    assert broken(run_of(outcome(arrivals=(), ended=66.0))) == ["no progress in time"]


def test_a_whole_answer_may_take_as_long_for_each_loss_of_verify():
    slow = outcome(manner=WHOLE, arrivals=(120.0,), ended=120.0)
    assert silence_of(slow, []) == 120.0
    assert silence_of(slow, [30.0, 130.0]) == 60.0
    assert broken(run_of(slow)) == ["no progress in time"]
    assert broken(run_of(slow, events=[Event("kill", "verify", 30.0)])) == []


def test_verify_is_lost_by_events_and_where_it_falls_silent_by_itself():
    events = [Event("kill", "verify", 30.0), Event("kill", "draft", 40.0), Event("stop", "verify", 50.0)]
    seen = Looks([29.0, 30.5, 40.0, 41.0, 42.0, 50.2], [True, False, True, False, True, False])
    assert losses_of_verify(run_of(events=events, verify=seen)) == [30.0, 41.0, 50.0]


def test_slow_readers_are_no_slow_servers():
    slow = replace(STREAMED, reading="slowly")
    assert broken(run_of(outcome(manner=slow, arrivals=(1.0, 80.0), ended=80.0))) == []


def test_processes_that_were_started_again_may_have_other_memory():
    assert broken(run_of(after={"gateway": sample(pid=8, rss=300 * MIB)})) == []


def test_pauses_count_by_the_losses_that_fell_into_them():
    facts, _ = judge(run_of(events=[Event("kill", "verify", 1.5)]), BOUNDS)
    assert facts["pauses_ms"]["at_losses"] == 1
    assert facts["pauses_ms"]["all"]["max"] == 1000.0


def test_goodput_counts_time_in_which_verify_answered():
    facts, _ = judge(run_of(verify=looks(True, True, False, True)), BOUNDS)
    assert facts["goodput"]["verify_up_seconds"] == 1.0
    assert facts["goodput"]["tokens_per_second_up"] == 3.0


def test_an_answer_differs_by_its_tokens_logprobs_or_end():
    right = Choice("ab", [1, 2], {"token_logprobs": [-0.5, -0.25]}, ("length", None))
    answers = Answers({0: [right]})
    whole = replace(outcome(), choices=[replace(right)])
    assert not answers.differs(whole)
    for wrong in (
        replace(right, token_ids=[1, 3]),
        replace(right, logprobs={"token_logprobs": [-0.5, -0.26]}),
        replace(right, end=("stop", None)),
        replace(right, text="ac"),
    ):
        assert answers.differs(replace(whole, choices=[wrong]))
    assert answers.differs(replace(whole, choices=[right, right]))
    assert not answers.differs(replace(whole, choices=[], failure=Failure("UNAVAILABLE", "")))
    assert not answers.differs(replace(whole, choices=[], manner=replace(STREAMED, reading="leaves")))


def test_the_tables_show_what_was_counted():
    facts, _ = judge(run_of(failed("INTERNAL"), differing=4, events=[Event("kill", "verify", 1.5)]), BOUNDS)
    text = tables.text(facts)
    for line in ("| differing ", "1 INTERNAL", "| kill verify", "| gateway |"):
        assert line in text
