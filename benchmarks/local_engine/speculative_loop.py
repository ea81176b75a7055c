"""A verify loop in this process with drafters beside it or behind it, as the two services would run them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.lib.link_server import link_servers
from benchmarks.local_engine.local_loop import LocalLoop, local_loop
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS, HostLimits
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.link_state import LinkState
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host, load_host
from verify_service.model_runner.factory import TargetModel

CPU = "cpu"
PROCESS = "process"
PLACES = (IN_PROCESS, PROCESS)
_START_SECONDS, _STOP_SECONDS = 180.0, 10.0


@dataclass(frozen=True, slots=True)
class Drafters:
    """Proposers by name, with what follows the name on the command line, and where they run.

    place: `inproc`, or `process` for a draft service of their own. deadline: seconds that a step waits for trees.
    """

    specs: dict[str, str]
    place: str
    device: str
    deadline: float

    @property
    def hosted(self) -> tuple[str, ...]:
        """As written on the command line."""
        return tuple(f"{name}={spec}" for name, spec in self.specs.items())


class ChosenLink(DraftLink):
    """A draft link whose default proposer, that of requests that say nothing about speculation, may change."""

    chosen: str | None = None
    unread = 0
    """Steps that were launched with trees that only the device knew."""

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        self.unread += 1
        super().observe_wait(keys, seconds)

    def default(self) -> str | None:
        return self.chosen


@dataclass(frozen=True, slots=True)
class SpeculativeLoop:
    """A running loop and the link that its trees come over."""

    loop: LocalLoop
    link: ChosenLink

    def state(self) -> LinkState:
        """The link's counters."""
        return self.link.state()


def _keep_no_states(model: TargetModel) -> None:
    """A pass on a CPU keeps what its step asks for."""
    if not isinstance(model, CausalLM):
        model.capture(())


@contextmanager
def plain_loop(model: TargetModel, config: EngineConfig) -> Iterator[LocalLoop]:
    """A loop without drafters, whose passes keep no states."""
    _keep_no_states(model)
    with local_loop(model, config) as loop:
        yield loop


@contextmanager
def speculative_loop(
    model: TargetModel,
    config: EngineConfig,
    drafters: Drafters,
    tokenizer: str = "t",
    boundaries: int = 0,
) -> Iterator[SpeculativeLoop]:
    """A loop whose requests may name any of the drafters; `tokenizer` is the fingerprint of the target's.

    States are published at `boundaries` at most, or at as many as a model on a GPU was made for.
    """
    _keep_no_states(model)
    target = model.config
    facts = LinkFacts(
        model_fingerprint="m",
        tokenizer_fingerprint=tokenizer,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_layers=target.num_layers,
        max_context=config.max_context,
        max_nodes=config.max_nodes,
        feature_boundaries=tuple(boundaries_of(target.num_layers)),
        most_boundaries=boundaries if isinstance(model, CausalLM) else model.limits.boundaries,
    )
    link = ChosenLink(facts, LinkConfig(deadline=drafters.deadline, num_slots=2 * config.max_running))
    with ExitStack() as stack:
        rows = config.prefill_chunk + config.max_running + config.step_nodes
        device = CPU if isinstance(model, CausalLM) else str(model.kv.keys.device)
        beside = drafters.place == IN_PROCESS
        stack.enter_context(_beside(link, drafters, device, rows) if beside else _behind(link, drafters))
        local = stack.enter_context(local_loop(model, config, link))
        if not local.loop.wait_idle(_START_SECONDS):
            raise RuntimeError("the graphs of passes that keep states were not captured in time")
        yield SpeculativeLoop(local, link)


@contextmanager
def _beside(link: DraftLink, drafters: Drafters, device: str, rows: int) -> Iterator[None]:
    """The proposers run in this process, the model on `device`; a step has so many rows at most."""
    host = load_host(drafters.hosted, HostLimits(device=_numbered(drafters.device)))
    attach_host(link, host, device=device, max_step_rows=rows)
    try:
        yield
    finally:
        link.close()
        host.stop(_STOP_SECONDS)


@contextmanager
def _behind(link: DraftLink, drafters: Drafters) -> Iterator[None]:
    """The proposers run in a draft service."""
    with link_servers(1) as (server,), server.serve(link):
        command = [sys.executable, "-m", "draft_service", "--verify", f"127.0.0.1:{server.port}", "--port", "0"]
        command += ["--device", drafters.device, "--log-level", "warning"]
        command += [part for spec in drafters.hosted for part in ("--proposer", spec)]
        with subprocess.Popen(command) as service:
            try:
                _wait_for(link, tuple(drafters.specs), service)
                yield
            finally:
                service.terminate()


def _wait_for(link: DraftLink, names: Sequence[str], service: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + _START_SECONDS
    while not all(map(link.known, names)):
        if service.poll() is not None or time.monotonic() > limit:
            raise RuntimeError("the draft service did not attach")
        time.sleep(0.05)


def _numbered(device: str) -> str:
    """A device as proposers are told of it."""
    return "cuda:0" if device == "cuda" else device
