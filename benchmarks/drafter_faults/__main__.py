"""Drafters that are killed, hang, lie or crash their GPU under load: what requests notice of it.

    python -m benchmarks.drafter_faults --faults kill,hang,garbage,stale,flood,twice --transport shm
    python -m benchmarks.drafter_faults --faults kill,hang,kernel --device cuda --placement mps --transport cuda_ipc

The services run as real processes that are started again when they end. The same requests are answered plainly first;
then, for each fault, they stream over and over with a proposer, and every answer is compared. Exit status 1 if the
transport in use is not the one asked for, a request failed, a token differed, no trees were accepted between two kills
or after a hang, verify's memory grew on in the second half of a fault, or its descriptors or shared memory at all, the
verify service did not live on where it should have, or a swap took more than 50 steps.

    kill     SIGKILL to the drafter at work, every --every seconds, or once some drafter is attached and has had a tree
             accepted if that is later; it is started again. On a GPU a start takes seconds: with several --drafters
             another one takes the requests over meanwhile. The JSON has of each kill where the pauses lie, how long it
             took to be noticed and what waits that cost, how long the machine held processes up, and the logs about it
    hang     SIGSTOP, and sections of the requests with and without speculation, in turns, sent to verify itself
    garbage, stale, flood, twice, silent, wrong
             a hostile drafter takes the requests over: bytes that are no records, stamps of the past, messages
             without end, two attachments and two exchanges of one, no answer at all, trees that are always wrong
    kernel   an illegal access in the drafter's GPU kernel; without a GPU SIGSEGV
    verify   SIGKILL to the verify service
    swap     another drafter takes the requests over, and gives them back: steps until acceptance is the new one's

Placement: cpu (the drafter on the CPU), time-slicing or mps (on verify's GPU), second-gpu. The proposer is the demo
model's draft model, and with --transport cuda_ipc its EAGLE-3 head: a draft model reads no states, and without these
nothing goes through the GPU's memory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.drafter_faults.kills import line_of
from benchmarks.drafter_faults.scenarios import CALM_SECONDS, SCENARIOS, Bench, failed
from benchmarks.drafter_faults.services import fallbacks, start_times, supervised
from benchmarks.drafter_faults.traffic import Traffic, once
from benchmarks.lib.mps import mps_server
from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.lib.repository import DEMO_MODEL, DEMO_MODELS
from benchmarks.lib.runner import Job, verify_info

DRAFTS = {"draft-model": "slipstream-demo-draft", "eagle3": "slipstream-demo-eagle3"}
"""The demo models' folder of each proposer."""
GPU_DEADLINE_MS = 20.0
"""Of a verify service on a GPU: a quarter of a step of the demo model is too short for any drafter."""
FAULTING = "support.faulting_kernel:create"
"""The same proposer, which crashes its GPU once a file is there."""
TOKEN_RANGE = (10, 400)
PLACEMENTS = {"cpu": "cpu", "time-slicing": "cuda:0", "mps": "cuda:0", "second-gpu": "cuda:1"}
"""The drafter's device."""


def make_jobs(streams: int, tokens: int) -> list[Job]:
    """Both temperatures in turn."""
    draw = random.Random(streams)
    prompts = [tuple(draw.randrange(*TOKEN_RANGE) for _ in range(24)) for _ in range(streams)]
    return [
        Job(prompt, tokens, temperature=0.8 * (index % 2), seed=index, ignore_eos=True)
        for index, prompt in enumerate(prompts)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drafter_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--proposer", choices=tuple(DRAFTS), help="default: eagle3 over cuda_ipc, else draft-model")
    parser.add_argument("--draft", type=Path, help="default: the demo model's")
    parser.add_argument("--drafters", type=int, default=1, help="draft services at once; one has the requests")
    parser.add_argument("--faults", default="kill,hang", help=f"in order, of {', '.join(SCENARIOS)}")
    parser.add_argument("--transport", choices=("cuda_ipc", "shm", "grpc"), default="shm")
    parser.add_argument("--device", default="cpu", help="of the verify service: cpu, cuda or cuda:N")
    parser.add_argument("--placement", choices=tuple(PLACEMENTS), default="cpu")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60.0, help="of kill")
    parser.add_argument("--attack-seconds", type=float, default=10.0, help="of each hostile drafter's")
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=12, help="of hang's sections")
    parser.add_argument(
        "--hang-tokens", type=int, help="of hang's requests; default: a quarter of --tokens, on a GPU all"
    )
    parser.add_argument(
        "--deadline-ms", type=float, help=f"default: the verify service's; with --device cuda {GPU_DEADLINE_MS:g}"
    )
    parser.add_argument("--verify-arg", action="append", default=[], help="passed to the verify service")
    parser.add_argument("--draft-arg", action="append", default=[], help="passed to the draft service")
    parser.add_argument("--output", type=Path, help="JSON; faults that it has already and were not asked for are kept")
    options = parser.parse_args()
    options.faults = options.faults.split(",")
    unknown = set(options.faults) - set(SCENARIOS)
    if unknown:
        parser.error(f"--faults: unknown {', '.join(sorted(unknown))}")
    if options.placement != "cpu" and not options.device.startswith("cuda"):
        parser.error("--placement: needs --device cuda, or is cpu")
    if options.transport == "cuda_ipc" and options.placement == "cpu":
        parser.error("--transport cuda_ipc: needs a --placement on a GPU")
    on_gpu = options.device.startswith("cuda")
    options.proposer = options.proposer or ("eagle3" if options.transport == "cuda_ipc" else "draft-model")
    options.draft = options.draft or DEMO_MODELS / DRAFTS[options.proposer]
    options.hang_tokens = options.hang_tokens or (options.tokens if on_gpu else max(1, options.tokens // 4))
    if not 1 <= options.hang_tokens <= options.tokens:
        parser.error("--hang-tokens: from 1 to --tokens")
    if options.deadline_ms is None and on_gpu:
        options.deadline_ms = GPU_DEADLINE_MS
    return options


@contextmanager
def started(options: argparse.Namespace, environment: dict[str, str]) -> Iterator[Bench]:
    """The services as the options say, and what they answer to the requests plainly."""
    deadline = () if options.deadline_ms is None else ("--draft-deadline-ms", str(options.deadline_ms))
    transports = "cuda_ipc,shm" if options.transport == "cuda_ipc" else options.transport
    verify = ("--device", options.device, "--transports", transports, *deadline, *options.verify_arg)
    placed = () if options.placement == "cpu" else ("--device", PLACEMENTS[options.placement])
    # To try a head's boundaries takes seconds of each start.
    drafter = ("--max-depth", "3", "--topk", "1", "--no-boundary-check", *placed, *options.draft_arg)
    with tempfile.TemporaryDirectory() as folder:
        trigger = Path(folder, "fault")
        target = f":target={options.model}" if options.proposer == "eagle3" else ""
        draft = (f"{options.proposer}={FAULTING}:{trigger}:{options.proposer}:{options.draft}{target}",)
        with supervised(
            options.model,
            draft,
            verify=verify,
            drafter=drafter,
            environment=environment,
            drafters=options.drafters,
        ) as services:
            jobs = make_jobs(options.streams, options.tokens)
            plain = [answer.token_ids for _, answer in sorted(once(services.grpc, jobs).answers, key=lambda at: at[0])]
            yield Bench(
                services=services,
                jobs=jobs,
                proposer=options.proposer,
                plain=plain,
                transport=options.transport,
                seconds=options.seconds,
                attack_seconds=options.attack_seconds,
                every=options.every,
                pairs=options.pairs,
                hang_tokens=options.hang_tokens,
                trigger=trigger,
                shares_context=options.placement == "mps",
            )


def main() -> int:
    options = parse()
    results: dict[str, Any] = {}
    if options.output and options.output.exists():
        results = json.loads(options.output.read_text("utf-8"))["faults"]
    asked = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
    broken, begun = False, time.monotonic()
    with ExitStack() as stack:
        environment = stack.enter_context(mps_server()) if options.placement == "mps" else {}
        bench = stack.enter_context(started(options, environment))
        bench = replace(bench, before=bench.calm(CALM_SECONDS))
        state = bench.services.state()
        used, reason = _transports(bench)
        print(f"transport in use: {', '.join(used)}; deadline {state.draft_deadline_us / 1000:g} ms", flush=True)
        print(f"ready after {time.monotonic() - begun:.1f} s; without faults {_acceptance(bench.before)}", flush=True)
        print("\n".join(start_times(bench.services)), flush=True)
        if used != {options.transport}:
            print(f"NOT AS ASKED FOR: {options.transport}: {reason or 'no reason given'}")
            return 1
        for name in options.faults:
            results[name] = result = SCENARIOS[name](bench)
            result["deadline_ms"] = bench.services.state().draft_deadline_us / 1000
            wrong = failed(result)
            broken |= bool(wrong)
            print(f"\n{name}: {'NOT AS PROMISED: ' + ', '.join(wrong) if wrong else 'as promised'}")
            print("\n".join(f"  {key}: {_shown(key, value)}" for key, value in result.items()), flush=True)
            if options.output:
                facts = {"machine": gpu_machine(options.device), "options": asked, "faults": results}
                write_json(options.output, facts)
    return int(broken)


def _transports(bench: Bench) -> tuple[set[str], str]:
    """What is in use, and why it is not a better one."""
    info = verify_info(bench.services.cluster.verify_address)
    reasons = {each.transport_reason for each in info.proposers if each.transport_reason}
    used = {each.transport for each in bench.services.state().drafters}
    return used, "; ".join(sorted(reasons) + fallbacks(bench.services))


def _acceptance(traffic: Traffic) -> str:
    """How many tokens a step yields, the first of each request left out."""
    decoded = sum(answer.decoded for _, answer in traffic.answers)
    steps = sum(answer.decode_steps for _, answer in traffic.answers)
    return f"{decoded / max(1, steps):.2f} tokens a step"


def _shown(key: str, value: Any) -> Any:
    """Without long lists, and a line for each kill."""
    if key == "each_kill":
        return "".join(f"\n    {line_of(number, each)}" for number, each in enumerate(value))
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if key != "moving"}
    return value


if __name__ == "__main__":
    sys.exit(main())
