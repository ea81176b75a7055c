"""Sends streams to the verify services that a policy prefers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.core.request import ChoiceRequest
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica import Replica
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.routing import RoutingPolicy


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
