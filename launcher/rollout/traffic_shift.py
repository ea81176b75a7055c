"""`slipstream swap-draft`: a draft service takes requests over from the others, and the command waits until it has."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from slipstream.rpc.channel import from_rpc_error, open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc

CALL_SECONDS = 20.0
POLL_SECONDS = 0.05
SHARE_ERROR = 1e-6  # of a float32


class SwapError(RuntimeError):
    """It could not be done, or not in time."""


@dataclass(frozen=True, slots=True)
class SwapState:
    """What there is to wait for: whether the share is known to verify, and requests that have yet to move."""

    applied: bool
    moving: int
    former: dict[str, int]
    """Requests of each older draft service of the same proposers, by its address."""

    @property
    def done(self) -> bool:
        return self.applied and self.moving == 0


def swap(draft_address: str, verify_address: str, *, share: float, seconds: float, tls: Tls | None = None) -> SwapState:
    """Give the draft service at `draft_address` its share and wait until no request has yet to move.

    Without `verify_address` the draft service is asked for it. SwapError if either does not answer, the draft service
    is not attached, or the time is up.
    """
    deadline = time.monotonic() + seconds
    with open_sync_channel(draft_address, tls=tls) as channel:
        admin = draft_pb2_grpc.DraftAdminServiceStub(channel)
        info = ask_info(draft_address, channel)
        ask(draft_address, lambda: admin.SetShare(draft_pb2.SetShareRequest(share=share), timeout=CALL_SECONDS))
        with open_sync_channel(verify_address or info.verify_address, tls=tls) as verify_channel:
            verify = verify_pb2_grpc.VerifyServiceStub(verify_channel)
            while True:
                info = ask_info(draft_address, channel)
                state = ask(
                    verify_address or info.verify_address,
                    lambda: verify.GetState(verify_pb2.GetStateRequest(), timeout=CALL_SECONDS),
                )
                progress = progress_of(state, info.epoch if info.attached else 0, share)
                if progress.done:
                    return progress
                if time.monotonic() > deadline:
                    raise SwapError(_late(draft_address, progress, attached=info.attached))
                time.sleep(POLL_SECONDS)


def progress_of(state: verify_pb2.GetStateResponse, epoch: int, share: float) -> SwapState:
    """How far the attachment of that epoch is with taking its share; epoch 0 stands for none."""
    own = [drafter for drafter in state.drafters if drafter.epoch == epoch]
    names = {drafter.proposer for drafter in own}
    others = [drafter for drafter in state.drafters if drafter.epoch != epoch and drafter.proposer in names]
    former: dict[str, int] = {}
    for drafter in others:
        former[drafter.address] = former.get(drafter.address, 0) + drafter.requests
    applied = bool(own) and all(abs(drafter.share - share) < SHARE_ERROR for drafter in own)
    moving = {drafter.epoch: drafter.catching_up for drafter in (*own, *others)}
    return SwapState(applied, sum(moving.values()), former)


def run(draft_address: str, verify_address: str, *, share: float, seconds: float, tls: Tls | None = None) -> int:
    """Swap and say what came of it; returns the exit status."""
    try:
        state = swap(draft_address, verify_address, share=share, seconds=seconds, tls=tls)
    except SwapError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 1
    print(f"{draft_address} has its share of {share:g}; no request has yet to move")
    for address, requests in state.former.items():
        where, idle = (address, " and may be stopped") if address else ("the verify service itself", "")
        print(f"{where} drafts for {requests} requests" + ("" if requests else idle))
    return 0


def ask_info(address: str, channel: grpc.Channel) -> draft_pb2.DraftAdminServiceGetInfoResponse:
    """What the draft service at `address` says of itself; SwapError where it does not answer."""
    stub = draft_pb2_grpc.DraftAdminServiceStub(channel)
    request = draft_pb2.DraftAdminServiceGetInfoRequest()
    info: draft_pb2.DraftAdminServiceGetInfoResponse = ask(address, lambda: stub.GetInfo(request, timeout=CALL_SECONDS))
    return info


def ask(address: str, call: Callable[[], Any]) -> Any:
    """What the call gives; SwapError, naming the address, where it fails."""
    try:
        return call()
    except grpc.RpcError as error:
        raise SwapError(f"{address}: {from_rpc_error(error).message}") from error


def _late(address: str, progress: SwapState, *, attached: bool) -> str:
    if not attached:
        return f"the draft service at {address} is not attached"
    if not progress.applied:
        return f"the verify service has not taken the share of {address}"
    return f"{progress.moving} requests have yet to move"
