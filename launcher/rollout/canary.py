"""A new draft service beside the old ones of the same proposers: what both are worth while both serve."""

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
"""Within which requests have moved once a share has changed."""
STATE_SECONDS: Final = 30.0
"""A verify service that is busy, or starts again, takes its time to answer."""
EARLY_CONFIDENCE: Final = 0.9999
EARLY_PART: Final = 0.2
"""A window is cut short where a fall is clear to this confidence, after this part of its tokens: looks are many, and
each may be misled (the rule of Haybittle and Peto for interim looks)."""


class DeployError(RuntimeError):
    """Why the new draft service is not kept."""


class NoRivalError(RuntimeError):
    """There is nobody to be compared with any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How carefully to go about it."""

    shares: tuple[float, ...] = (0.1, 0.5)
    """Of the requests, one after the other, before it takes all."""
    tokens: int = 20_000
    """That the steps of either must have yielded at each share, and once more of the new one when it has all."""
    margin: float = 0.02
    """Part of the old acceptance length that the new one may lack."""
    confidence: float = 0.99
    """With which it must be known to lack more than that, to be sent back."""
    seconds: float = 600.0
    """That each window may take."""
    attach_seconds: float = 120.0
    stop_loser: bool = True


@dataclass(frozen=True, slots=True)
class Canary:
    """The new one's attachment, and how to see how it does."""

    address: str
    verify_address: str
    epoch: int
    names: frozenset[str]
    read_state: Callable[[], verify_pb2.GetStateResponse]
    tls: Tls | None = None

    def give(self, share: float) -> None:
        """Have it take this part of the requests; returns when they have moved. SwapError where that fails."""
        swap(self.address, self.verify_address, share=share, seconds=MOVE_SECONDS, tls=self.tls)

    def rivals(self, state: verify_pb2.GetStateResponse) -> list[verify_pb2.DrafterState]:
        """Other attachments' proposers of the same names."""
        return [each for each in state.drafters if each.epoch != self.epoch and each.proposer in self.names]

    def look(self) -> verify_pb2.GetStateResponse:
        """The state; DeployError where the new one is not attached any more."""
        state = self.read_state()
        if all(each.epoch != self.epoch for each in state.drafters):
            raise DeployError(f"{self.address} lost its attachment")
        return state


@contextmanager
def enter(
    address: str, verify_address: str, plan: Plan, own: PidfdProcess | None, tls: Tls | None = None
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
    """What the draft service says once both ends take it for attached."""
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
    contest: Canary, plan: Plan, title: str, progress: bool, *, reference: Estimate | None = None
) -> tuple[Estimate, Estimate]:
    """Watch until both have yielded the plan's tokens; DeployError once the new one is clearly below the old.

    With `reference` that is what the new one is held against, and nobody else has to draft.
    """
    new, old = Arm(), Arm()
    seen = _counters(contest.look())
    deadline = time.monotonic() + plan.seconds
    with tqdm(total=plan.tokens, desc=title, unit="tok", disable=None if progress else True) as bar:
        while True:
            time.sleep(POLL_SECONDS)
            state = contest.look()
            if reference is None and not contest.rivals(state):
                raise NoRivalError
            seen = _count(contest, state, seen, new, old)
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


def _fell(new: Estimate, old: Estimate, plan: Plan, part: float) -> bool:
    """Whether the new one is clearly below the old, after this part of a window's tokens."""
    if part < EARLY_PART:
        return False
    confidence = plan.confidence if part >= 1.0 else max(plan.confidence, EARLY_CONFIDENCE)
    return significantly_below(new, old, margin=plan.margin, confidence=confidence)


_Counters = dict[tuple[int, str], tuple[int, int]]
"""Steps that asked for a tree and accepted tokens, by epoch and proposer."""


def _counters(state: verify_pb2.GetStateResponse) -> _Counters:
    """Steps in lockstep are those that had their tree and those that waited in vain; ahead nothing is waited for."""
    return {
        (each.epoch, each.proposer): (
            max(each.hits + each.misses, each.ahead_hits + each.ahead_misses),
            each.accepted_tokens,
        )
        for each in state.drafters
    }


def _count(contest: Canary, state: verify_pb2.GetStateResponse, before: _Counters, new: Arm, old: Arm) -> _Counters:
    """Add to both what has come since `before`; gives the counters as they are now."""
    now = _counters(state)
    sums = {True: [0, 0], False: [0, 0]}
    for key, (steps, accepted) in now.items():
        if key[1] in contest.names and key in before:
            sums[key[0] == contest.epoch][0] += steps - before[key][0]
            sums[key[0] == contest.epoch][1] += accepted - before[key][1]
    new.add(*sums[True])
    old.add(*sums[False])
    return now
