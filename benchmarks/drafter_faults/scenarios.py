"""What is done to a drafter, or to the verify service, while requests stream; and what each of it shows."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.drafter_faults.hang import Section, section, spread_of
from benchmarks.drafter_faults.holdings import Sample, held
from benchmarks.drafter_faults.kills import Kill, Moment, kill_one
from benchmarks.drafter_faults.services import POLL_SECONDS, START_SECONDS, Services
from benchmarks.drafter_faults.swap import accepted_at_steps, random_drafter
from benchmarks.drafter_faults.traffic import Traffic, about, while_doing
from benchmarks.lib.drafter_commands import hostile_command
from benchmarks.lib.percentiles import middle, spread
from benchmarks.lib.repository import ROOT
from benchmarks.lib.runner import Job

Result = dict[str, Any]

ACCEPTED_AT_LEAST = 64
HANG_SECONDS = 12.0
"""Below the 20 s after which a process that does not answer is taken for gone, with room for a pair of sections."""
SETTLED_SECONDS = 1.5
"""How long a drafter has hung before its cost is measured: steps have found out by then."""
AGAIN_SECONDS = 8.0
"""Within which a drafter that goes on has to draft again: it has much to catch up with."""
CALM_SECONDS = 2.0
_WORDS = 300
"""Characters that are kept of what a hostile drafter says that cannot attack."""
SWAP_STEPS = 50
"""Within which acceptance has to be the new drafter's."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Running services, the requests, and what plain decoding answers to them."""

    services: Services
    jobs: Sequence[Job]
    proposer: str
    plain: Sequence[tuple[int, ...]]
    transport: str
    seconds: float
    attack_seconds: float
    every: float
    pairs: int
    hang_tokens: int
    trigger: Path
    shares_context: bool
    before: Traffic = field(default_factory=Traffic)
    """The requests drafted for, before anything was done to anybody."""

    @property
    def drafted(self) -> list[Job]:
        """The requests, with trees."""
        return [replace(job, proposer=self.proposer, max_depth=3, max_nodes=4) for job in self.jobs]

    def calm(self, seconds: float) -> Traffic:
        """Drafted for, with nothing done to anybody."""
        return while_doing(self.services.grpc, self.drafted, lambda: time.sleep(seconds))


def kill(bench: Bench) -> Result:
    """SIGKILL to the drafter at work, again and again.

    `every` seconds after the last one, or once some drafter is attached and has had a tree accepted if that is later.
    """
    services = bench.services
    calm = bench.before
    before, accepted, kills, back = services.holdings(), list[int](), list[Kill](), list[float]()
    during: list[Sample] = []

    def act() -> None:
        over = time.monotonic() + bench.seconds
        while time.monotonic() < over:
            begun, former = time.monotonic(), services.state().accepted_tokens
            if not _drafts_again(services, former, over if kills else over + START_SECONDS):
                break
            if kills:
                kills[-1] = replace(kills[-1], again=Moment.of(services))
            back.append(time.monotonic() - begun)
            time.sleep(max(0.0, bench.every - back[-1]))
            accepted.append(services.state().accepted_tokens - former)
            during.append(services.sample())
            kills.append(kill_one(services))

    traffic = while_doing(services.grpc, bench.drafted, act)
    services.wait_until(services.all_attached, "did not attach again")
    services.wait_until(lambda: services.state().running == 0, "left requests behind")
    after, deadline = services.holdings(), services.state().draft_deadline_us / 1e6
    step, log = middle(calm.pauses), services.log_lines()
    pauses = traffic.by_begin()
    hit = [[pause.seconds for pause in about(pauses, each.at)] for each in kills]
    return {
        **traffic.compare(bench.plain),
        "drafters": len(services.drafters),
        "kills": len(kills),
        "accepted_between_kills": accepted,
        "fruitless": accepted.count(0),
        "accepted_again_after_s": [round(seconds, 2) for seconds in back],
        "tokens_per_second": {"calm": calm.tokens / calm.seconds, "killed": traffic.tokens / traffic.seconds},
        "pause_ms": {"calm": spread(calm.pauses), "killed": spread(traffic.pauses)},
        "pause_at_kill_ms": spread([pause for each in hit for pause in each]),
        "added_stall_ms": spread([max(0.0, middle(each) - step) for each in hit if each]),
        "step_plus_deadline_ms": round(1000 * (step + deadline), 2),
        "each_kill": [each.facts(pauses, step, log) for each in kills],
        **held(before, during, after, len(services.drafters)),
    }


def _drafts_again(services: Services, former: int, until: float) -> bool:
    """Whether more than `former` tokens have been accepted of a drafter that is attached; waits for it."""
    while not (services.any_attached() and services.state().accepted_tokens > former):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def hang(bench: Bench) -> Result:
    """SIGSTOP, and meanwhile sections of the requests with and without speculation, in turns.

    Those of the first moments, in which steps find out that waiting is in vain, are told apart.
    """
    services = bench.services
    plain, drafted = (
        [replace(job, max_tokens=bench.hang_tokens) for job in jobs] for jobs in (bench.jobs, bench.drafted)
    )
    ratios, work, first, waits, attached = list[float](), list[float](), list[float](), list[int](), 0
    made = [section(services, plain)]
    while len(ratios) < bench.pairs:
        counted, stopped = services.state().draft_waits, time.monotonic()
        services.signal_drafts(signal.SIGSTOP)
        try:
            while time.monotonic() - stopped < SETTLED_SECONDS:
                made.append(section(services, drafted))
                first.append(made[-1].pace / made[0].pace)
            while len(ratios) < bench.pairs and time.monotonic() - stopped < HANG_SECONDS:
                pair = _pair(services, plain, drafted, plain_first=bool(len(ratios) % 2))
                ratios.append(pair[1].pace / pair[0].pace)
                work.append(pair[1].cpu_seconds / max(pair[0].cpu_seconds, 0.01))
                made += pair
            attached += services.all_attached()
            waits.append(services.state().draft_waits - counted)
        finally:
            services.signal_drafts(signal.SIGCONT)
        services.wait_until(services.all_attached, "did not attach again")
    former, until = services.state().accepted_tokens, time.monotonic() + AGAIN_SECONDS
    while services.state().accepted_tokens == former and time.monotonic() < until:
        made.append(section(services, drafted))
    expected = [tokens[: bench.hang_tokens] for tokens in bench.plain]
    return {
        "answers": len(made) * len(bench.jobs),
        "failed": sum(each.failures for each in made),
        "differing": sum(each.differing(expected) for each in made),
        "hangs": len(waits),
        "attached_to_the_end": attached,
        "pairs": len(ratios),
        "of_plain_throughput": spread_of(ratios),
        "of_plain_processor_time": spread_of(work),
        "of_plain_throughput_at_first": [round(ratio, 3) for ratio in first],
        "plain_tokens_per_second": round(made[0].pace),
        "section_seconds": round(made[0].seconds, 3),
        "waits_a_hang": waits,
        "accepted_after": services.state().accepted_tokens - former,
    }


def _pair(services: Services, plain: Sequence[Job], drafted: Sequence[Job], *, plain_first: bool) -> list[Section]:
    """A section without and one with speculation, in either order of time."""
    order = (plain, drafted) if plain_first else (drafted, plain)
    made = [section(services, jobs) for jobs in order]
    return made if plain_first else made[::-1]


def attack(kind: str) -> Callable[[Bench], Result]:
    """A hostile drafter that takes the requests over, misbehaves, and does so again once it has been thrown out."""

    def run(bench: Bench) -> Result:
        services, said, unable = bench.services, list[str](), list[str]()
        before, counted, during = services.holdings(), services.state(), list[Sample]()

        def act() -> None:
            over = time.monotonic() + bench.attack_seconds
            while time.monotonic() < over:
                attacked, words = _hostile(bench, kind)
                (said if attacked else unable).append(words)
                during.append(services.sample())

        traffic = while_doing(services.grpc, bench.drafted, act)
        services.wait_until(lambda: services.state().running == 0, "left requests behind")
        after, now = services.holdings(), services.state()
        return {
            **traffic.compare(bench.plain),
            "attacks": len(said),
            "said": sorted(set(said))[:6],
            "unable": sorted(set(unable))[:6],
            "malformed": now.malformed_records - counted.malformed_records,
            "stale": now.stale_records - counted.stale_records,
            "accepted": now.accepted_tokens - counted.accepted_tokens,
            "longest_pause_ms": spread(traffic.pauses).get("max"),
            **held(before, during, after, len(services.drafters)),
        }

    return run


def kernel(bench: Bench) -> Result:
    """The drafter's GPU kernel writes where it may not; without a GPU its process gets SIGSEGV.

    Verify has to live on, unless it shares the drafter's context (MPS): then it has to be started again.
    """
    return _disaster(bench, bench.trigger.touch, verify_dies=bench.shares_context)


def verify(bench: Bench) -> Result:
    """SIGKILL to the verify service."""
    process = bench.services.supervisor.process("verify")
    return _disaster(bench, lambda: process.signal(signal.SIGKILL), verify_dies=True)


def _disaster(bench: Bench, strike: Callable[[], None], *, verify_dies: bool) -> Result:
    services = bench.services
    former = services.verify_pid, services.draft_pids
    at = [0.0, 0.0]

    def act() -> None:
        services.wait_accepted(ACCEPTED_AT_LEAST)
        at[0] = time.perf_counter()
        strike()
        if verify_dies:
            services.wait_until(lambda: services.verify_pid != former[0], "left verify alive")
        else:
            services.wait_until(lambda: services.draft_pids != former[1], "did not end")
        services.wait_until(services.all_attached, "did not attach again")
        at[1] = time.perf_counter()
        services.wait_accepted(ACCEPTED_AT_LEAST)

    traffic = while_doing(services.grpc, bench.drafted, act)
    survived = services.verify_pid == former[0]
    return {
        **traffic.compare(bench.plain),
        "verify": "lived on" if survived else "was started again",
        "as_expected": survived != verify_dies,
        "pause_ms": spread(traffic.pauses),
        "longest_pause_ms": round(1000 * traffic.longest_within(*at), 1),
        "attached_again_after_s": round(at[1] - at[0], 2),
    }


def swap(bench: Bench) -> Result:
    """Requests go to a drafter that guesses at random, and back, while they stream."""
    figures: Result = {}

    def act() -> None:
        bench.services.wait_accepted(ACCEPTED_AT_LEAST)
        with random_drafter(bench.services, bench.proposer) as guessing:
            figures["to_random_guesses"] = accepted_at_steps(bench.services, guessing, share=1.0)
            figures["back"] = accepted_at_steps(bench.services, guessing, share=0.0)

    traffic = while_doing(bench.services.grpc, bench.drafted, act)
    slow = [name for name, each in figures.items() if not 0 <= (each["steps_until_there"] or -1) <= SWAP_STEPS]
    return {**traffic.compare(bench.plain), **figures, "slow": slow}


SCENARIOS: dict[str, Callable[[Bench], Result]] = {
    "kill": kill,
    "hang": hang,
    **{kind: attack(kind) for kind in ("garbage", "stale", "flood", "twice", "silent", "wrong")},
    "kernel": kernel,
    "verify": verify,
    "swap": swap,
}


def failed(result: Result) -> list[str]:
    """What of a result breaks the promises. Times are shown and not judged: they are the machine's as well."""
    wrong = [name for name in ("failed", "differing", "fruitless", "grown", "slow", "unable") if result.get(name)]
    return wrong + [name for name in ("answers", "as_expected", "accepted_after") if result.get(name, 1) in (0, False)]


def _hostile(bench: Bench, kind: str) -> tuple[bool, str]:
    """Run a hostile drafter until it is thrown out, or for a while; whether it attacked, and what it said last."""
    seconds = min(3.0, bench.attack_seconds)
    process = subprocess.run(
        hostile_command(bench.services.cluster.verify_address, kind, bench.proposer, bench.transport, seconds),
        cwd=ROOT,
        env={**os.environ, **bench.services.cluster.layout.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if process.returncode:
        return False, " ".join(process.stderr.split())[-_WORDS:]
    return True, process.stdout.strip().splitlines()[-1]
