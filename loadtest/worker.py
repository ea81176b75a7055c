"""One level of load in a process of its own: reads its settings as JSON on standard input, prints a `Level` as JSON."""

from __future__ import annotations

from loadtest.users import Asking, GrpcStreamUser, HttpStreamUser, StreamUser

# isort: split
import json
import logging
import sys
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gevent.event import Event
from locust.env import Environment

from loadtest.measure import Answer, Level, summarise
from loadtest.prompts import forever, load_prompts
from loadtest.target import parse_target

USERS: dict[str, type[StreamUser]] = {"http": HttpStreamUser, "grpc": GrpcStreamUser}


@dataclass(frozen=True, slots=True)
class Order:
    """What one worker is to do. It ends after `seconds` or `requests`, whichever comes first, running ones finished."""

    api: str
    concurrency: int
    seconds: float
    requests: int
    http: str
    grpc: str
    prompts: str
    max_tokens: int
    temperature: float
    proposer: str
    speculation: bool
    remote: bool
    timeout: float = 120.0
    api_key: str = ""


def work(order: Order) -> Level:
    """Run the level."""
    logging.basicConfig(level=logging.WARNING)
    conversations = load_prompts(Path(order.prompts) if order.prompts else None)
    user = USERS[order.api]
    user.asking = Asking(
        target=parse_target(order.http, order.grpc, remote=order.remote),
        conversations=forever(conversations),
        max_tokens=order.max_tokens,
        temperature=order.temperature,
        proposer=order.proposer,
        speculation=order.speculation,
        timeout=order.timeout,
        api_key=order.api_key,
    )
    answers: list[Answer] = []
    failures: list[Exception] = []
    done = count(1)
    full = Event()

    def record(context: dict[str, Any], exception: Exception | None = None, **_: Any) -> None:
        if "answer" not in context:
            return
        if exception is not None:
            failures.append(exception)
        else:
            answers.append(context["answer"])
        if next(done) >= order.requests:
            full.set()

    environment = Environment(user_classes=[user], stop_timeout=order.timeout)
    environment.events.request.add_listener(record)
    runner = environment.create_local_runner()
    runner.start(order.concurrency, spawn_rate=order.concurrency)
    full.wait(order.seconds)
    runner.quit()
    for failure in failures[:3]:
        print(f"{order.api} x {order.concurrency}: {failure}", file=sys.stderr)
    return summarise(order.api, order.concurrency, answers, len(failures))


if __name__ == "__main__":
    print(json.dumps(asdict(work(Order(**json.load(sys.stdin))))))
