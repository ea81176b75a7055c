"""`slipstream deploy`: a canary rollout of a draft service.

The canary gets growing parts of the requests. Both sides draft at once, so that both are measured on the same traffic.
Tokens never depend on the drafter; only speed is at stake.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from launcher.rollout.canary import Canary, DeployError, NoBaselineError, RolloutPlan, enter, watch
from launcher.rollout.stop_idle import end_own, stop_idle
from launcher.rollout.traffic_shift import SwapError
from launcher.services.pidfd_process import PidfdProcess
from slipstream.rpc.tls import Tls
from slipstream.v1 import verify_pb2

DYING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Result of a rollout. `unjudged`: the canary has all requests, as no baseline drafts any more."""

    verdict: Literal["took over", "returned", "unjudged"]
    reason: str
    loser: str = ""
    """End of the other side's process, as text."""


def deploy(
    address: str,
    plan: RolloutPlan,
    *,
    verify_address: str = "",
    own: PidfdProcess | None = None,
    progress: bool = True,
    tls: Tls | None = None,
) -> RolloutResult:
    """Roll out the draft service at `address`, or roll it back. `own`: its process, if just started.

    Any fault, and an interrupt, rolls back: all requests return to the old draft services.
    """
    try:
        with enter(address, verify_address, plan, own, tls) as canary:
            try:
                return _ramp_up(canary, plan, progress)
            except (DeployError, SwapError) as error:
                reason = _reason(error, address, own)
                return RolloutResult("returned", reason, _give_back(canary, own, plan.stop_loser))
            except BaseException:
                _give_back(canary, own, stop=own is not None)
                raise
    except (DeployError, SwapError) as error:
        return RolloutResult("returned", str(error), end_own(address, own) if own else "")
    except BaseException:
        if own is not None:
            end_own(address, own)
        raise


def _reason(error: DeployError | SwapError, address: str, own: PidfdProcess | None) -> str:
    """Return the reason; for a service that died during a call, the death rather than the call's error."""
    dead = isinstance(error, SwapError) and own is not None and own.wait(DYING_SECONDS)
    return f"{address} ended" if dead else str(error)


def _ramp_up(canary: Canary, plan: RolloutPlan, progress: bool) -> RolloutResult:
    """Give the canary the plan's shares in turn, then all. Raises DeployError or SwapError to roll it back."""
    state = canary.poll()
    if not canary.baselines(state):
        canary.set_weight(1.0)
        return RolloutResult("took over", f"no other draft service offers its proposers{_elsewhere(canary, state)}")
    new = old = None
    try:
        for share in plan.shares:
            canary.set_weight(share)
            new, old = watch(canary, plan, f"share {share:g}", progress)
    except NoBaselineError:
        canary.set_weight(1.0)
        return RolloutResult("unjudged", "the other draft services of its proposers are gone")
    canary.set_weight(1.0)
    new, _ = watch(canary, plan, "all requests", progress, reference=old)
    losers = _losers(canary) if plan.stop_loser else "left as they are"
    return RolloutResult("took over", f"{new} tokens a verify step, before it {old}", losers)


def _elsewhere(canary: Canary, state: verify_pb2.GetStateResponse) -> str:
    """Return the text that says which other proposers keep their requests; empty if none."""
    others = sorted({each.proposer for each in state.drafters} - canary.names)
    return f"; it was compared with none, and requests for {', '.join(others)} stay where they are" if others else ""


def _give_back(canary: Canary, own: PidfdProcess | None, stop: bool) -> str:
    """Take the canary's requests away, and end it if there is a baseline. Return what became of it."""
    state: verify_pb2.GetStateResponse | None = None
    with suppress(SwapError, DeployError):
        canary.set_weight(0.0)
        state = canary.poll()
    if state is not None and not canary.baselines(state):
        return f"{canary.address} is left, as nobody else drafts"
    if not stop:
        return f"{canary.address} is left without requests"
    if own is not None:
        return end_own(canary.address, own)
    drafter = next((each for each in state.drafters if each.epoch == canary.epoch), None) if state else None
    return stop_idle(drafter.address, drafter.process_id, canary.tls) if drafter else f"{canary.address} is gone"


def _losers(canary: Canary) -> str:
    """End the baselines that have no other proposer. Return what became of each."""
    state = canary.poll()
    offers: dict[int, set[str]] = {}
    for each in state.drafters:
        offers.setdefault(each.epoch, set()).add(each.proposer)
    said = []
    for epoch, each in {each.epoch: each for each in canary.baselines(state)}.items():
        alone = ", ".join(sorted(offers[epoch] - canary.names))
        if not each.address:
            said.append("the verify service's own proposer is left without requests")
        elif alone:
            said.append(f"{each.address} is left, as it alone offers {alone}")
        else:
            said.append(stop_idle(each.address, each.process_id, canary.tls))
    return "; ".join(said)
