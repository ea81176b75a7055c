"""A draft service that is killed, or stopped, every few seconds under load: what requests notice of it.

    python -m benchmarks.drafter_faults --fault kill --seconds 60 --streams 16 --transport shm

The same requests run first plainly, then over and over with a draft service that is killed (SIGKILL) and started again,
or stopped and continued (SIGSTOP, SIGCONT), `--every` seconds after it attached. Every answer is compared with the
plain one. Exit status 1 if a request failed, a token differed, no tree was accepted in an interval in which the draft
service was attached, or the verify service holds more descriptors or shared memory at the end than at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.runner import Answer, Job, connect, verify_state
from launcher.cluster import Cluster

ROOT = Path(__file__).parents[1]
PROPOSER = "draft-model"
PAGE_BYTES = 4096
TOKEN_RANGE = (10, 400)


@dataclass(slots=True)
class Faults:
    """What the tormentor saw: tokens accepted while the draft service was attached, for each fault."""

    accepted: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of the verify service's process."""

    resident: int
    descriptors: int
    rings: int

    @classmethod
    def of(cls, process: int) -> Holdings:
        folder = Path(f"/proc/{process}")
        resident = int((folder / "statm").read_text().split()[1]) * PAGE_BYTES
        rings = (folder / "maps").read_text().count("memfd:slipstream")
        return cls(resident, sum(1 for _ in (folder / "fd").iterdir()), rings)

    def __str__(self) -> str:
        return f"{self.resident / 2**20:.0f} MiB, {self.descriptors} descriptors, {self.rings} rings"


def make_jobs(streams: int, tokens: int) -> list[Job]:
    draw = random.Random(streams)
    prompts = [tuple(draw.randrange(*TOKEN_RANGE) for _ in range(24)) for _ in range(streams)]
    return [
        Job(prompt, tokens, temperature=0.8 * (index % 2), seed=index, ignore_eos=True)
        for index, prompt in enumerate(prompts)
    ]


def torment(cluster: Cluster, fault: str, every: float, over: threading.Event, faults: Faults) -> None:
    """Kill or stop the draft service again and again until it is over."""
    while not over.is_set():
        before = verify_state(cluster.verify_address).accepted_tokens
        if over.wait(every):
            return
        faults.accepted.append(verify_state(cluster.verify_address).accepted_tokens - before)
        if fault == "kill":
            cluster.kill("draft", signal.SIGKILL)
            cluster.start_draft()
        else:
            cluster.kill("draft", signal.SIGSTOP)
            over.wait(every)
            cluster.kill("draft", signal.SIGCONT)


async def run_for(cluster: Cluster, jobs: Sequence[Job], seconds: float) -> tuple[list[list[Answer]], float]:
    """Answers of whole rounds of the jobs for at least so long, and tokens a second."""
    rounds: list[list[Answer]] = []
    begun = time.monotonic()
    async with connect(cluster.gateway_grpc) as runner:
        while not rounds or time.monotonic() - begun < seconds:
            rounds.append(await runner.run(jobs, len(jobs)))
    tokens = sum(len(answer.token_ids) for answers in rounds for answer in answers)
    return rounds, tokens / (time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "demo_models" / "slipstream-demo")
    parser.add_argument("--draft", type=Path, default=ROOT / "demo_models" / "slipstream-demo-draft")
    parser.add_argument("--fault", choices=("kill", "stop"), default="kill")
    parser.add_argument("--transport", choices=("shm", "grpc"), default="shm")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--deadline-ms", type=float, default=20.0)
    options = parser.parse_args()
    arguments = ("--draft-deadline-ms", str(options.deadline_ms), "--transports", options.transport)
    draft_arguments = ("--max-depth", "3", "--topk", "1")
    with Cluster(
        options.model, draft=(f"{PROPOSER}:{options.draft}",), verify_args=arguments, draft_args=draft_arguments
    ) as cluster:
        return compare(cluster, options)


def compare(cluster: Cluster, options: argparse.Namespace) -> int:
    """Run plainly, run tormented, print what differs; the exit status."""
    jobs = make_jobs(options.streams, options.tokens)
    drafted = [replace(job, proposer=PROPOSER, max_depth=3, max_nodes=4) for job in jobs]
    process = cluster.processes["verify"].pid
    (plain,), plain_rate = asyncio.run(run_for(cluster, jobs, 0.0))
    _, calm_rate = asyncio.run(run_for(cluster, drafted, 0.0))
    start, faults, over = Holdings.of(process), Faults(), threading.Event()
    tormentor = threading.Thread(target=torment, args=(cluster, options.fault, options.every, over, faults))
    tormentor.start()
    try:
        rounds, rate = asyncio.run(run_for(cluster, drafted, options.seconds))
    finally:
        over.set()
        tormentor.join()
    with contextlib.suppress(TimeoutError):
        asyncio.run(run_for(cluster, drafted, 0.0))
    end = Holdings.of(process)
    answers = [(one, other) for round_ in rounds for one, other in zip(plain, round_, strict=True)]
    failed = sum(other.finish_reason != "FINISH_REASON_LENGTH" for _, other in answers)
    differing = sum(one.token_ids != other.token_ids for one, other in answers)
    fruitless = sum(accepted == 0 for accepted in faults.accepted)
    pauses = [max(answer.longest_pause for answer in group) for group in (plain, [other for _, other in answers])]
    print(f"{options.fault} every {options.every:g} s over {options.transport}: {len(faults.accepted)} faults")
    print(f"answers {len(answers)}, failed {failed}, differing {differing}")
    print(f"accepted between faults: {faults.accepted}")
    print(
        f"tokens/s: plain {plain_rate:.0f}, drafted {calm_rate:.0f}, with faults {rate:.0f} ({rate / plain_rate:.2f}x)"
    )
    print(f"longest pause: plain {1000 * pauses[0]:.0f} ms, with faults {1000 * pauses[1]:.0f} ms")
    print(f"verify before: {start}\nverify after:  {end}")
    grown = end.rings > start.rings or end.descriptors > start.descriptors + 2
    return int(bool(failed or differing or fruitless or grown))


if __name__ == "__main__":
    sys.exit(main())
