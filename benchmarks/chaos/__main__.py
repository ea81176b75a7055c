"""A server in a storm: kills, stops, hostile drafters and clients that leave, while every answer is compared.

    python -m benchmarks.chaos --minutes 15 --output benchmarks/results/chaos.json
    python -m benchmarks.chaos --minutes 8.5 --events verify --verify-kill-seconds 18      # crash after crash
    python -m benchmarks.chaos --minutes 5 --events draft,stop --killer

Starts `slipstream serve` on free ports of loopback. Each question is answered plainly and whole by a calm server first;
then clients ask the same ones over and over, by HTTP and gRPC, streamed and whole, with every kind of drafting, read
steadily, slowly or not to the end. Events of each kind come at random, by a seed:

    verify, draft, gateway   SIGKILL; the launcher starts the service again. What clients see of a killed gateway is
                             counted apart
    stop                     SIGSTOP of a service for a fraction of a second up to half as long again as --hang-seconds,
                             after which the launcher kills it
    hostile                  a drafter that attaches and sends garbage, the past or floods, twice, nothing, or nonsense
    swap                     another draft service takes all requests over, and gives them back

--killer adds a request under which the verify service dies by SIGKILL each time that it runs there.

Exit status 1 if an answer differed, a request had an error other than UNAVAILABLE or RESOURCE_EXHAUSTED with
Retry-After, one had neither progress nor an end for --resume-seconds and 5 s, a killer request did not end as INTERNAL,
requests, pages or sessions were left, a service ended by itself or wrote a traceback, memory, descriptors or threads
grew, or less than --least-goodput of the calm server's tokens a second came while verify was up.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.chaos import tables
from benchmarks.chaos.events import DEFAULT_EVENTS, DEFAULT_SECONDS, KINDS, Storm, await_all
from benchmarks.chaos.judge import Bounds, Run, judge
from benchmarks.chaos.traffic import Answers, Traffic, ask_all, reference
from benchmarks.chaos.watch import Watch, ends_of_services, left_behind, tracebacks
from benchmarks.lib.process_samples import sample_processes
from benchmarks.lib.report import machine, plain_options, write_json
from benchmarks.lib.request_mix import Manners, Question, questions
from benchmarks.lib.server_process import Server, served, with_test_modules
from launcher.services.commands import IN_PROCESS, proposer_name
from launcher.services.models import resolve_draft, resolve_model

KILLER_DRAFT = f"{IN_PROCESS}killer=support.killer_proposer:create"
GRACE_SECONDS = 5.0
"""Beyond --resume-seconds, within which a request that makes no progress has to end."""
PATIENCE = 4.0
"""Times that bound a client waits, to see how late an answer is."""
SETTLE_SECONDS = 30.0
"""Within which what requests held is free after the last one."""
BACK_SECONDS = 90.0
"""Within which all services are there again after the last event."""
DRAIN_SECONDS = 5
TELL_SECONDS = 60.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="of events")
    parser.add_argument("--calm-seconds", type=float, default=20.0, help="of traffic before, for comparison")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=12, help="each asks one question after the other")
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--longest", type=int, default=600, help="tokens of an answer")
    parser.add_argument("--events", default=",".join(DEFAULT_EVENTS), help=f"of {', '.join(KINDS)}; empty: none")
    for kind in KINDS:
        flag = f"--{kind}-kill-seconds" if kind in ("verify", "draft", "gateway") else f"--{kind}-seconds"
        usual = DEFAULT_SECONDS[kind]
        parser.add_argument(flag, dest=f"every_{kind}", type=float, default=usual, help=f"between two; {usual:g}")
    parser.add_argument("--killer", action="store_true")
    parser.add_argument("--resume-seconds", type=float, default=60.0, help="of the gateway")
    parser.add_argument("--hang-seconds", type=float, default=10.0, help="of the launcher")
    parser.add_argument("--least-goodput", type=float, default=0.5)
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--draft", action="append", help="as of slipstream serve; the first is swapped and attacked")
    parser.add_argument("--serve-arg", action="append", default=[], help="passed to slipstream serve")
    parser.add_argument("--log", type=Path, help="where the services' log goes; default: a temporary file")
    parser.add_argument("--output", type=Path, help="JSON")
    options = parser.parse_args(arguments)
    options.events = [kind for kind in options.events.split(",") if kind]
    unknown = set(options.events) - set(KINDS)
    if unknown:
        parser.error(f"--events: unknown {', '.join(sorted(unknown))}")
    return options


async def observe(server: Server, options: argparse.Namespace, proposers: Sequence[str]) -> Run:
    """Reference, calm and storm on a running server, and what was seen of them."""
    asked = questions(options.questions, options.seed, longest=options.longest)
    patience = PATIENCE * (options.resume_seconds + GRACE_SECONDS)
    answers = await reference(server, asked, options.clients)
    calm = _traffic(server, asked, proposers, options, patience, seed=options.seed)
    calm_rate = await _calm(calm, options.calm_seconds)
    print(f"calm: {len(calm.outcomes)} requests, {calm_rate:.0f} tokens/s", flush=True)
    await left_behind(server, SETTLE_SECONDS)
    before = sample_processes(server.pids())

    storm = Storm(
        server,
        {kind: getattr(options, f"every_{kind}") for kind in options.events},
        options.seed,
        options.hang_seconds,
        with_test_modules(),
        proposers[0],
    )
    traffic = _traffic(server, asked, proposers, options, patience, seed=options.seed + 1)
    watch, over = Watch(server), asyncio.Event()
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        asking = group.create_task(traffic.run(over, killer=options.killer))
        telling = group.create_task(_tell(storm, traffic, answers))
        await asyncio.gather(storm.run(60 * options.minutes), asyncio.sleep(60 * options.minutes))
        ended = time.perf_counter()
        over.set()
        await asking
        complete = await await_all(server, proposers, BACK_SECONDS)
        watching.cancel()
        telling.cancel()
    manners = Manners(Random(options.seed), proposers, faithful=True)
    afterwards = await ask_all(server, asked, manners.next, options.clients, patience)
    outcomes = [*calm.outcomes, *traffic.outcomes, *afterwards]
    left = await left_behind(server, SETTLE_SECONDS)
    log = server.log.read_text()
    return Run(
        outcomes=outcomes,
        differing=sum(answers.differs(outcome) for outcome in outcomes),
        calm_rate=calm_rate,
        storm_seconds=(begun, ended),
        events=storm.events,
        verify=watch.verify,
        gateway=watch.gateway,
        killers=traffic.killers,
        killer_asked=options.killer,
        before=before,
        during=watch.samples,
        after=sample_processes(server.pids()),
        left=left,
        ends=ends_of_services(log),
        tracebacks=tracebacks(log),
        complete=complete,
    )


def _traffic(
    server: Server,
    asked: Sequence[Question],
    proposers: Sequence[str],
    options: argparse.Namespace,
    patience: float,
    *,
    seed: int,
) -> Traffic:
    return Traffic(server, asked, proposers, clients=options.clients, seed=seed, patience=patience)


async def _calm(traffic: Traffic, seconds: float) -> float:
    """Run the clients for so long; tokens a second that reached them."""
    over, begun = asyncio.Event(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run(over))
        await asyncio.sleep(seconds)
        over.set()
    seconds = time.perf_counter() - begun
    return sum(outcome.total for outcome in traffic.outcomes) / seconds


async def _tell(storm: Storm, traffic: Traffic, answers: Answers) -> None:
    """A line a minute, until cancelled."""
    begun = time.monotonic()
    while True:
        await asyncio.sleep(TELL_SECONDS)
        differing = sum(answers.differs(outcome) for outcome in traffic.outcomes)
        failed = Counter(outcome.failure.code for outcome in traffic.outcomes if outcome.failure is not None)
        print(
            f"{time.monotonic() - begun:.0f} s: {len(traffic.outcomes)} requests, {differing} differ, "
            f"errors {dict(failed)}, {len(storm.events)} events",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    model = resolve_model(options.model)
    draft = resolve_draft(options.draft or (), demo=options.model is None, target=model)
    if not draft or draft[0].startswith(IN_PROCESS):
        raise SystemExit("--draft: the first proposer has to be one of a draft service, which is killed and swapped")
    proposers = [proposer_name(spec) for spec in draft]
    killer = (KILLER_DRAFT,) if options.killer else ()
    limits = ("--resume-seconds", options.resume_seconds, "--hang-seconds", options.hang_seconds)
    serve = [*map(str, limits), "--max-restarts", "0", "--drain-seconds", str(DRAIN_SECONDS), *options.serve_arg]
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "log")
        with served(model, (*draft, *killer), log, *serve, environment=with_test_modules()) as server:
            run = asyncio.run(observe(server, options, proposers))
    facts, broken = judge(run, Bounds(options.resume_seconds + GRACE_SECONDS, options.least_goodput))
    print(f"\n{tables.text(facts)}\n")
    for name in ("examples", "late_examples"):
        print("\n".join(facts["requests"][name]))
    print(f"NOT AS PROMISED: {'; '.join(broken)}" if broken else "as promised", flush=True)
    if options.output:
        asked = plain_options(options)
        write_json(options.output, {"machine": machine(), "options": asked, "broken": broken, **facts})
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
