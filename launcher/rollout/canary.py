"""The canary of a rollout: a new draft service beside the old ones of the same proposers, compared on live traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc
from tqdm import tqdm

from launcher.rollout.acceptance_stats import Arm, Estimate, significantly_below
from launcher.rollout.traffic_shift import SwapError, ask, ask_info, swap
from launcher.services.pidfd_process import PidfdProcess
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.v1 import draft_pb2, verify_pb2, verify_pb2_grpc

POLL_SECONDS: Final = 0.25
MOVE_SECONDS: Final = 60.0
"""Limit for requests to move once a weight has changed."""
STATE_SECONDS: Final = 30.0
"""Timeout of a state request: a verify service that is busy or restarts answers late."""
EARLY_CONFIDENCE: Final = 0.9999
EARLY_PART: Final = 0.2
"""Confidence of the interim tests, after this part of a window's tokens: high, as they are many (the rule of Haybittle
and Peto for interim looks)."""


class DeployError(RuntimeError):
    """The canary is rolled back; the message says why."""


class NoBaselineError(RuntimeError):
    """No other draft service is left to compare the canary with."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Weights and tests of a rollout."""

    shares: tuple[float, ...] = (0.1, 0.5)
    """Parts of the requests that the canary gets, one after the other, before all."""
    tokens: int = 20_000
    """Tokens a window: from both sides at each share, from the canary alone once it has all requests."""
    margin: float = 0.02
    """Tolerated relative drop in acceptance length."""
    confidence: float = 0.99
    """Confidence level of the one-sided Welch test that rolls the canary back."""
    seconds: float = 600.0
    """Time limit of each window."""
    attach_seconds: float = 120.0
    stop_loser: bool = True


@dataclass(frozen=True, slots=True)
class Canary:
    """The new draft service's attachment.

    epoch: of the attachment.
    names: proposers that it offers.
    read_state: asks the verify service.
    """

    address: str
    verify_address: str
    epoch: int
    names: frozenset[str]
    read_state: Callable[[], verify_pb2.GetStateResponse]
    tls: Tls | None = None

    def set_weight(self, share: float) -> None:
        """Route this part of the requests to the canary; returns when they have moved. Raises SwapError."""
        swap(self.address, self.verify_address, share=share, seconds=MOVE_SECONDS, tls=self.tls)

    def baselines(self, state: verify_pb2.GetStateResponse) -> list[verify_pb2.DrafterState]:
        """Return the other attachments' proposers of the same names."""
        return [each for each in state.drafters if each.epoch != self.epoch and each.proposer in self.names]

    def poll(self) -> verify_pb2.GetStateResponse:
        """Return the verify service's state. Raises DeployError where the canary is not attached any more."""
        state = self.read_state()
        if all(each.epoch != self.epoch for each in state.drafters):
            raise DeployError(f"{self.address} lost its attachment")
        return state


@contextmanager
def enter(
    address: str, verify_address: str, plan: RolloutPlan, own: PidfdProcess | None, tls: Tls | None = None
) -> Iterator[Canary]:
    """Wait until the draft service is attached; DeployError if it ends first or the time is up."""
    deadline = time.monotonic() + plan.attach_seconds
    with open_sync_channel(address, tls=tls) as channel:
        while (found := _attached(address, channel, verify_address, tls)) is None:
            if own is not None and not own.running:
                raise DeployError(f"{address} ended before it was attached")
            if time.monotonic() > deadline:
                raise DeployError(f"{address} was not attached in time")
            time.sleep(POLL_SECONDS)
    where = verify_address or found.verify_address
    with open_sync_channel(where, tls=tls) as channel:

        def read() -> verify_pb2.GetStateResponse:
            if own is not None and not own.running:
                raise DeployError(f"{address} ended")
            return _state(where, channel)

        yield Canary(address, where, found.epoch, frozenset(offer.name for offer in found.proposers), read, tls)


def _attached(
    address: str, channel: grpc.Channel, verify_address: str, tls: Tls | None
) -> draft_pb2.DraftAdminServiceGetInfoResponse | None:
    """Return the draft service's info once both ends report the attachment."""
    try:
        info = ask_info(address, channel)
        where = verify_address or info.verify_address
        if info.attached:
            with open_sync_channel(where, tls=tls) as verify:
                if any(each.epoch == info.epoch for each in _state(where, verify).drafters):
                    return info
    except SwapError:
        pass
    return None


def _state(address: str, channel: grpc.Channel) -> verify_pb2.GetStateResponse:
    stub = verify_pb2_grpc.VerifyServiceStub(channel)
    request = verify_pb2.GetStateRequest()
    state: verify_pb2.GetStateResponse = ask(
        address, lambda: stub.GetState(request, timeout=STATE_SECONDS, wait_for_ready=True)
    )
    return state


def watch(
    canary: Canary, plan: RolloutPlan, title: str, progress: bool, *, reference: Estimate | None = None
) -> tuple[Estimate, Estimate]:
    """Compare both sides until each has the plan's tokens. Return their estimates, new and old.

    reference: compare with this estimate; no baseline has to draft.
    Raises DeployError once the canary is significantly below, and when the time is up; NoBaselineError.
    """
    new, old = Arm(), Arm()
    seen = _counters(canary.poll())
    deadline = time.monotonic() + plan.seconds
    with tqdm(total=plan.tokens, desc=title, unit="tok", disable=None if progress else True) as bar:
        while True:
            time.sleep(POLL_SECONDS)
            state = canary.poll()
            if reference is None and not canary.baselines(state):
                raise NoBaselineError
            seen = _count(canary, state, seen, new, old)
            done = new.tokens if reference else min(new.tokens, old.tokens)
            mine, theirs = new.estimate(), reference or old.estimate()
            bar.set_postfix_str(f"new {mine or '-'}, old {theirs or '-'}", refresh=False)
            bar.update(min(done, plan.tokens) - bar.n)
            if mine is not None and theirs is not None:
                if _fell(mine, theirs, plan, done / plan.tokens):
                    raise DeployError(f"{title}: {mine} tokens a verify step, while the old has {theirs}")
                if done >= plan.tokens:
                    return mine, theirs
            if time.monotonic() > deadline:
                raise DeployError(
                    f"{title}: only {new.tokens} tokens of the new one's and {old.tokens} of the old's steps "
                    f"in {plan.seconds:g} s"
                )


def _fell(new: Estimate, old: Estimate, plan: RolloutPlan, part: float) -> bool:
    """Return whether the new side is significantly below the old, after this part of a window's tokens."""
    if part < EARLY_PART:
        return False
    confidence = plan.confidence if part >= 1.0 else max(plan.confidence, EARLY_CONFIDENCE)
    return significantly_below(new, old, margin=plan.margin, confidence=confidence)


_Counters = dict[tuple[int, str], tuple[int, int]]
"""Steps that asked for a tree and accepted tokens, by epoch and proposer."""


def _counters(state: verify_pb2.GetStateResponse) -> _Counters:
    """Return the counters. Steps: with a tree or a wait in vain."""
    return {(each.epoch, each.proposer): (each.hits + each.misses, each.accepted_tokens) for each in state.drafters}


def _count(canary: Canary, state: verify_pb2.GetStateResponse, before: _Counters, new: Arm, old: Arm) -> _Counters:
    """Add what came since `before` to both sides. Return the counters of `state`."""
    now = _counters(state)
    sums = {True: [0, 0], False: [0, 0]}
    for key, (steps, accepted) in now.items():
        if key[1] in canary.names and key in before:
            sums[key[0] == canary.epoch][0] += steps - before[key][0]
            sums[key[0] == canary.epoch][1] += accepted - before[key][1]
    new.add(*sums[True])
    old.add(*sums[False])
    return now
