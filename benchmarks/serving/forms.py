"""The forms in which our server is started to be measured, and servers that run already."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from benchmarks.lib.mps import mps_server
from benchmarks.lib.runner import verify_info
from benchmarks.lib.server_process import Server, served
from benchmarks.serving.forecast import Forecast
from launcher.services.commands import IN_PROCESS, NO_DRAFT, proposer_name
from launcher.services.readiness import IN_PROCESS_TRANSPORT
from slipstream.v1 import verify_pb2

PLAIN, INPROC, MPS, TIME_SLICING, DRAFT_SERVICE = "plain", "inproc", "mps", "time-slicing", "draft-service"
FORMS = (PLAIN, INPROC, MPS, TIME_SLICING, DRAFT_SERVICE)
ON_CPU = (PLAIN, INPROC, DRAFT_SERVICE)
ON_GPU = (PLAIN, INPROC, MPS, TIME_SLICING)
POLL_SECONDS = 0.1
ASK_SECONDS = 10.0
LOG_SHOWN = 4000
"""Characters of the end of a log."""


class NotReadyError(RuntimeError):
    """A server did not become ready, or its drafter did not attach."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to start our server. `draft` as of `slipstream serve`; `mps`: its processes are clients of NVIDIA MPS."""

    name: str
    model: Path
    draft: tuple[str, ...] = (NO_DRAFT,)
    mps: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether anything drafts."""
        return self.draft != (NO_DRAFT,)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `facts`: seconds of its start and where its drafter is, as far as they are known."""

    url: str
    model: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    forecast: Forecast = field(default_factory=Forecast)


def form(name: str, model: Path, draft: str, device: str, arguments: Sequence[str]) -> Form:
    """The form of that name, with one proposer. ValueError for one that the device has not."""
    if name in (MPS, TIME_SLICING) and not device.startswith("cuda"):
        raise ValueError(f"{name} needs a GPU, and the device is {device}")
    if name not in FORMS:
        raise ValueError(f"no form {name!r}; there are {', '.join(FORMS)}")
    specs = {PLAIN: NO_DRAFT, INPROC: IN_PROCESS + draft}
    more = ("--device", device, *(part for each in arguments for part in each.split()))
    return Form(name, model, (specs.get(name, draft),), name == MPS, more)


@contextmanager
def started(form: Form, log: Path, attach_seconds: float) -> Iterator[Running]:
    """Our server in this form, ready and with its drafter attached; it is drained afterwards.

    ServeError and NotReadyError, FileNotFoundError where MPS is not installed.
    """
    with ExitStack() as stack:
        environment = stack.enter_context(mps_server()) if form.mps else None
        begun = time.perf_counter()
        server = stack.enter_context(served(form.model, form.draft, log, *form.arguments, environment=environment))
        facts: dict[str, Any] = {"seconds_to_greeting": time.perf_counter() - begun}
        if form.drafts:
            facts |= _wait_attached(server, form.draft, attach_seconds)
            facts["seconds_to_attached"] = time.perf_counter() - begun
        yield Running(server.http, served_name(server.http, ASK_SECONDS), facts, Forecast(server.verify))


def served_name(url: str, seconds: float, api_key: str = "") -> str:
    """The first model that a server lists, of any make, once it lists one. NotReadyError after `seconds`."""
    found = _poll(lambda: _get(f"{url}/v1/models", api_key), lambda body: bool(body.get("data")), seconds)
    if not found.get("data"):
        raise NotReadyError(f"{url} lists no model within {seconds:g} s")
    return str(found["data"][0]["id"])


def wait_drafting(url: str, seconds: float, api_key: str = "") -> list[str]:
    """Proposers that /ready still names as missing after at most `seconds`; none for servers of another make."""
    body = _poll(lambda: _get(f"{url}/ready", api_key), lambda body: not body.get("missing_proposers"), seconds)
    return [str(each["proposer"]) for each in body.get("missing_proposers") or ()]


def _wait_attached(server: Server, draft: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return once each proposer is attached where its spec wants it. NotReadyError with the reason if it is refused."""
    deadline = time.monotonic() + seconds
    while True:
        info = _info(server)
        found = [_attached(info, spec) for spec in draft]
        attached = [each for each in found if each is not None]
        if len(attached) == len(draft):
            return {
                "transport": ", ".join(each.transport for each in attached),
                "transport_reason": ", ".join(filter(None, (each.transport_reason for each in attached))),
                "overlap": ", ".join(filter(None, (each.overlap for each in attached))),
                "draft_device": ", ".join(each.device for each in attached),
            }
        reasons = [f"{each.proposer}: {each.reason}" for each in info.refusals] if info else []
        if reasons or time.monotonic() > deadline or server.process.poll() is not None:
            raise NotReadyError(
                f"not attached: {'; '.join(reasons) or 'no reason told'}:\n{server.log.read_text()[-LOG_SHOWN:]}"
            )
        time.sleep(POLL_SECONDS)


def _info(server: Server) -> verify_pb2.GetInfoResponse | None:
    try:
        return verify_info(server.verify)
    except grpc.RpcError:
        return None


def _attached(info: verify_pb2.GetInfoResponse | None, spec: str) -> verify_pb2.ProposerStatus | None:
    inside = spec.startswith(IN_PROCESS)
    fits = (
        each
        for each in (info.proposers if info else ())
        if each.name == proposer_name(spec) and each.attached and (each.transport == IN_PROCESS_TRANSPORT) == inside
    )
    return next(fits, None)


def _poll(
    ask: Callable[[], dict[str, Any]], enough: Callable[[dict[str, Any]], bool], seconds: float
) -> dict[str, Any]:
    """The first answer that is enough, or the last one."""
    deadline = time.monotonic() + seconds
    while not enough(body := ask()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return body


def _get(url: str, api_key: str) -> dict[str, Any]:
    """A JSON object; an empty one where there is none."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=ASK_SECONDS) as reply:  # noqa: S310  # http alone, as Target has it
            body = json.load(reply)
    except (urllib.error.URLError, OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
