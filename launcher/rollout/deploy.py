"""`slipstream deploy`: a new draft service takes over from the old ones by and by, if its guesses are no worse.

At each share of a plan both draft at once, so that both are judged by the same traffic. Nothing of this changes a
token: what a drafter is worth is all that is at stake.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from launcher.rollout.canary import Canary, DeployError, NoRivalError, Plan, enter, watch
from launcher.rollout.stop_idle import end_own, stop_idle
from launcher.rollout.traffic_shift import SwapError
from launcher.services.pidfd_process import PidfdProcess
from slipstream.rpc.tls import Tls
from slipstream.v1 import verify_pb2

DYING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`unjudged`: it has all requests because nobody else drafts for them any more."""

    verdict: Literal["took over", "returned", "unjudged"]
    reason: str
    loser: str = ""
    """What became of the other side's process."""


def deploy(
    address: str,
    plan: Plan,
    *,
    verify_address: str = "",
    own: PidfdProcess | None = None,
    progress: bool = True,
    tls: Tls | None = None,
) -> Outcome:
    """Hand requests to the draft service at `address` and keep it or return them. `own` is its process if just started.

    Whatever goes wrong, the requests are back with the old ones at the end, and so they are when this is interrupted.
    """
    try:
        with enter(address, verify_address, plan, own, tls) as contest:
            try:
                return _compete(contest, plan, progress)
            except (DeployError, SwapError) as error:
                reason = _reason(error, address, own)
                return Outcome("returned", reason, _give_back(contest, own, plan.stop_loser))
            except BaseException:
                _give_back(contest, own, stop=own is not None)
                raise
    except (DeployError, SwapError) as error:
        return Outcome("returned", str(error), end_own(address, own) if own else "")
    except BaseException:
        if own is not None:
            end_own(address, own)
        raise


def _reason(error: DeployError | SwapError, address: str, own: PidfdProcess | None) -> str:
    """A service that dies while it is spoken to is told as such, not as what the call ran into."""
    dead = isinstance(error, SwapError) and own is not None and own.wait(DYING_SECONDS)
    return f"{address} ended" if dead else str(error)


def _compete(contest: Canary, plan: Plan, progress: bool) -> Outcome:
    """Through all shares to the end; DeployError or SwapError where it is to be returned."""
    state = contest.look()
    if not contest.rivals(state):
        contest.give(1.0)
        return Outcome("took over", f"no other draft service offers its proposers{_elsewhere(contest, state)}")
    new = old = None
    try:
        for share in plan.shares:
            contest.give(share)
            new, old = watch(contest, plan, f"share {share:g}", progress)
    except NoRivalError:
        contest.give(1.0)
        return Outcome("unjudged", "the other draft services of its proposers are gone")
    contest.give(1.0)
    new, _ = watch(contest, plan, "all requests", progress, reference=old)
    losers = _losers(contest) if plan.stop_loser else "left as they are"
    return Outcome("took over", f"{new} tokens a verify step, before it {old}", losers)


def _elsewhere(contest: Canary, state: verify_pb2.GetStateResponse) -> str:
    """That other names keep their requests, if there are any."""
    others = sorted({each.proposer for each in state.drafters} - contest.names)
    return f"; it was compared with none, and requests for {', '.join(others)} stay where they are" if others else ""


def _give_back(contest: Canary, own: PidfdProcess | None, stop: bool) -> str:
    """Take the share away, and end the service if there is another one; says what became of it."""
    state: verify_pb2.GetStateResponse | None = None
    with suppress(SwapError, DeployError):
        contest.give(0.0)
        state = contest.look()
    if state is not None and not contest.rivals(state):
        return f"{contest.address} is left, as nobody else drafts"
    if not stop:
        return f"{contest.address} is left without requests"
    if own is not None:
        return end_own(contest.address, own)
    drafter = next((each for each in state.drafters if each.epoch == contest.epoch), None) if state else None
    return stop_idle(drafter.address, drafter.process_id, contest.tls) if drafter else f"{contest.address} is gone"


def _losers(contest: Canary) -> str:
    """End the services that draft for nothing any more; says what became of each."""
    state = contest.look()
    offers: dict[int, set[str]] = {}
    for each in state.drafters:
        offers.setdefault(each.epoch, set()).add(each.proposer)
    said = []
    for epoch, each in {each.epoch: each for each in contest.rivals(state)}.items():
        alone = ", ".join(sorted(offers[epoch] - contest.names))
        if not each.address:
            said.append("the verify service's own proposer is left without requests")
        elif alone:
            said.append(f"{each.address} is left, as it alone offers {alone}")
        else:
            said.append(stop_idle(each.address, each.process_id, contest.tls))
    return "; ".join(said)
