"""Which verify service a request goes to, of those that may take it. No policy can change a token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from gateway.config import RoutingName
from gateway.core.request import ChoiceRequest
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import ReplicaLoad

CHOICE_TOKENS: Final = 64
"""Prompt tokens that put off a first token as much as one choice under way does: its rows are in every pass, and its
line may be the last."""

WAITING_TOKENS: Final = 2048
"""What a choice weighs in addition that finds no line of the batch free: an answer has to end before it starts."""

LEAD: Final = 0.5
LEAST_LEAD: Final = 2
"""By how much of its lines, or by how many choices if that is more, a service may be ahead of the idlest one. Beyond
that a prefix is better computed once more: answers of a fuller batch are slower to their last token, and what many
requests share is then cached at several services."""

ANEW: Final = 2
"""What a token of the prompt weighs that is cached elsewhere and would be computed anew: the requests that come later
wait for it, too, and it takes the room of another prefix."""


class Routed(Protocol):
    """A replica, as far as routing sees it."""

    @property
    def load(self) -> int:
        """Choices under way there."""
        ...

    @property
    def routing(self) -> ReplicaLoad:
        """What it has to compute, and what it has cached."""
        ...

    @property
    def max_running(self) -> int:
        """Lines of its batch: choices that are decoded together. More wait."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens of a KV page; 0 where the service tells nothing of its cache."""
        ...


R = TypeVar("R", bound=Routed)


class RoutingPolicy(Protocol):
    """Orders replicas for a request."""

    name: RoutingName

    def prompt(self, request: ChoiceRequest, replica: Routed) -> PromptPrefix | None:
        """What a replica's load is told of a prompt that comes its way; None where prompts do not count."""
        ...

    def rank(self, request: ChoiceRequest, replicas: Sequence[R]) -> tuple[list[R], PromptPrefix | None]:
        """The replicas, the best one first, and the prompt's prefixes where these were looked up."""
        ...


class LeastLoaded:
    """The fewest choices under way first; of equals the one that is named first."""

    name: RoutingName = "least-loaded"

    def prompt(self, request: ChoiceRequest, replica: Routed) -> PromptPrefix | None:
        """See RoutingPolicy."""
        return None

    def rank(self, request: ChoiceRequest, replicas: Sequence[R]) -> tuple[list[R], PromptPrefix | None]:
        """See RoutingPolicy."""
        return sorted(replicas, key=lambda replica: replica.load), None


class Random:
    """Any of them."""

    name: RoutingName = "random"

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def prompt(self, request: ChoiceRequest, replica: Routed) -> PromptPrefix | None:
        """See RoutingPolicy."""
        return None

    def rank(self, request: ChoiceRequest, replicas: Sequence[R]) -> tuple[list[R], PromptPrefix | None]:
        """See RoutingPolicy."""
        return self._random.sample(replicas, len(replicas)), None


class Prefix:
    """The earliest first token first: by the tokens that have to be computed before it.

    These are the prompt's own that are not cached there, times ANEW, those of prompts that wait there, CHOICE_TOKENS
    for each choice under way, and WAITING_TOKENS for each one beyond the lines of the batch. Last come services without
    a free line while another has one, and those that are ahead of the idlest by more than LEAD. Of equals the least
    recently used one is first, so that new groups of prompts spread. Where no service holds anything of the prompt this
    is least-loaded, with prompts weighed by their length. After Mooncake (arXiv 2407.00079, section 6: the instance
    with the least estimated TTFT), with prefixes as Dynamo and llm-d know them: from events of the engines, and
    provisionally from the moment of routing.
    """

    name: RoutingName = "prefix"

    def prompt(self, request: ChoiceRequest, replica: Routed) -> PromptPrefix | None:
        """See RoutingPolicy."""
        return PromptPrefix.of(request, replica.page_size) if replica.page_size else None

    def rank(self, request: ChoiceRequest, replicas: Sequence[R]) -> tuple[list[R], PromptPrefix | None]:
        """See RoutingPolicy."""
        if len(replicas) < 2:
            return list(replicas), None
        prompt = self.prompt(request, replicas[0])
        if prompt is None:
            return LeastLoaded().rank(request, replicas)
        names, size = prompt.names, prompt.page_size
        least = min(replica.load for replica in replicas)
        some_free = any(replica.load < replica.max_running for replica in replicas)
        costs: list[tuple[bool, float, float, int]] = []
        for index, replica in enumerate(replicas):
            if replica.page_size != size:
                return LeastLoaded().rank(request, replicas)
            load, choices, lines = replica.routing, replica.load, replica.max_running
            cost = load.queued_tokens + CHOICE_TOKENS * choices + WAITING_TOKENS * max(0, choices + 1 - lines)
            if count := load.prefixes.count(names):
                cost -= ANEW * prompt.cached_tokens(count)
            last = (some_free and choices >= lines) or choices - least > max(LEAST_LEAD, LEAD * lines)
            costs.append((last, cost, load.used, index))
        costs.sort()
        return [replicas[index] for *_, index in costs], prompt


def policy_named(name: RoutingName) -> RoutingPolicy:
    """The policy of a name."""
    match name:
        case "prefix":
            return Prefix()
        case "least-loaded":
            return LeastLoaded()
        case "random":
            return Random()
