"""Asks the verify services of replicas what they are and what they do. Nothing here waits for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc

from launcher.cluster.autoscaler import Load
from launcher.cluster.status import DrafterStatus, LoadStatus
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.v1 import verify_pb2, verify_pb2_grpc

ASK_SECONDS: Final = 0.5
"""Between two questions to one service."""
ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a verify service. `bits`: services of which all of it is equal take each other's streams."""

    model: str
    bits: tuple[str, ...]
    capacity: int


class _Watched:
    """One service: its connection, the question under way, and the newest answers."""

    __slots__ = ("address", "call", "channel", "facts", "next_at", "state")

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self.channel = open_sync_channel(address, tls=tls)
        self.call: Any = None
        self.next_at = 0.0
        self.facts: Facts | None = None
        self.state: verify_pb2.GetStateResponse | None = None


class LoadWatch:
    """Of the services at the addresses told last, by replica. Used by one thread."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}

    def follow(self, addresses: Mapping[int, str], tls: Tls | None) -> None:
        """Watch these replicas and no others."""
        for number in [each for each, watched in self._watched.items() if addresses.get(each) != watched.address]:
            self._watched.pop(number).channel.close()
        for number, address in addresses.items():
            if number not in self._watched:
                self._watched[number] = _Watched(address, tls)

    def look(self, now: float) -> None:
        """Take in what was answered, and ask again where it is time."""
        for watched in self._watched.values():
            if watched.call is not None and watched.call.done():
                self._take(watched)
            if watched.call is None and now >= watched.next_at:
                stub = verify_pb2_grpc.VerifyServiceStub(watched.channel)
                ask = stub.GetState if watched.facts is not None else stub.GetInfo
                request = verify_pb2.GetStateRequest() if watched.facts is not None else verify_pb2.GetInfoRequest()
                watched.call = ask.future(request, timeout=ANSWER_SECONDS)
                watched.next_at = now + ASK_SECONDS

    def facts(self, number: int) -> Facts | None:
        """None before the service has answered."""
        watched = self._watched.get(number)
        return None if watched is None else watched.facts

    def load(self, number: int) -> Load | None:
        """The newest load; None where the last question was not answered."""
        watched = self._watched.get(number)
        if watched is None or watched.state is None or watched.facts is None:
            return None
        state = watched.state
        return Load(
            running=state.running,
            queued=state.queued,
            oldest_wait=state.oldest_wait_seconds,
            pages_total=state.pages_total,
            pages_idle=state.pages_free + state.pages_cached,
            capacity=watched.facts.capacity,
        )

    def status(self, number: int) -> LoadStatus | None:
        """The same for people, with counters."""
        watched = self._watched.get(number)
        if watched is None or watched.state is None:
            return None
        state = watched.state
        prompts = state.prompt_tokens + state.prefix_hit_tokens
        return LoadStatus(
            running=state.running,
            queued=state.queued,
            oldest_wait_seconds=state.oldest_wait_seconds,
            pages_total=state.pages_total,
            pages_idle=state.pages_free + state.pages_cached,
            tokens=state.committed_tokens,
            hit_rate=state.prefix_hit_tokens / prompts if prompts else None,
            drafters=tuple(
                DrafterStatus(each.proposer, each.process_id, each.transport, each.requests, each.drafted_tokens,
                              each.accepted_tokens)
                for each in state.drafters
            ),
        )  # fmt: skip

    @staticmethod
    def _take(watched: _Watched) -> None:
        call, watched.call = watched.call, None
        try:
            answer = call.result()
        except grpc.RpcError:
            watched.state = None
            return
        if watched.facts is None:
            watched.facts = _facts(answer)
            watched.next_at = 0.0
        else:
            watched.state = answer


def _facts(info: verify_pb2.GetInfoResponse) -> Facts:
    device = info.device.partition(":")[0]
    bits = (info.model_fingerprint, info.version, device, info.mode, info.attention, str(info.tensor_parallel_size))
    return Facts(info.model_name, bits, max(1, info.max_running))
