"""Sends streams to the verify services that a policy prefers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.core.request import ChoiceRequest
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica import Replica
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.routing import RoutingPolicy

MOVED_TOGETHER: Final = 8
"""Streams of a service that drains which another one computes anew at a time: a few prefill chunks. The others go on
where they are meanwhile."""


class Router:
    """Ranks replicas for requests; the prompt's prefixes that it looked up for this are of use when they are sent."""

    __slots__ = ("_policy",)

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy

    def watch(self, replicas: Sequence[Replica]) -> None:
        """Have services tell what they have cached, if there is a choice among them and that decides."""
        if self._policy.name == "prefix" and len(replicas) > 1:
            for replica in replicas:
                replica.watch_cache()

    def rank(self, request: ChoiceRequest, replicas: Sequence[Replica]) -> tuple[list[Replica], PromptPrefix | None]:
        """See RoutingPolicy.rank."""
        return self._policy.rank(request, replicas)

    def relieve(self, others: Iterable[Replica], replica: Replica) -> None:
        """Move choices that wait at others to a replica that has come, as far as the policy expects them sooner there.

        The latest go first, and none that has begun: nothing that was computed is lost.
        """
        info = replica.info if replica.ready else None
        for other in others:
            for stream in reversed([] if other is replica else other.streams):
                if stream.begun or stream.yielded or info is None or not stream.fits(info):
                    continue
                ranked, prompt = self.rank(stream.request, (other, replica))
                if ranked[0] is replica:
                    other.cancel(stream)
                    stream.move()
                    self.send(replica, [stream], prompt)

    @staticmethod
    def leaving(
        replicas: Iterable[Replica], ready: Sequence[Replica], waiting: int
    ) -> Iterator[tuple[Replica, ResumableStream]]:
        """Streams to take from services that drain, or that are named no more, and can go on at those that are ready.

        Of a service that drains, which serves them meanwhile, so many that each ready one has MOVED_TOGETHER that have
        lost a service and no token since, those that are `waiting` for one included; new requests do not count. All
        where a service is named no more, as it may be gone.
        """
        infos = [replica.info for replica in ready if replica.info is not None]
        room = MOVED_TOGETHER * len(infos) - waiting
        room -= sum(stream.paused_at > 0.0 for replica in ready for stream in replica.streams)
        for replica in replicas:
            for stream in replica.streams if replica.draining or replica.leaving else ():
                if (room > 0 or replica.leaving) and any(map(stream.fits, infos)):
                    room -= 1
                    yield replica, stream

    def send(self, replica: Replica, streams: Sequence[ResumableStream], prompt: PromptPrefix | None) -> None:
        """Send choices of one request; `prompt` is that of the first one, and counts once for all that share it."""
        former: object = None
        for index, stream in enumerate(streams):
            if (token_ids := stream.request.prompt_token_ids) is former:
                replica.submit(stream)
            elif index and prompt is not None:
                replica.submit(stream, self._policy.prompt(stream.request, replica))
            else:
                replica.submit(stream, prompt)
            former = token_ids
