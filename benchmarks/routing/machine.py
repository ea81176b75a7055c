"""A verify service in virtual time: a real prefix cache, with formulas for how long steps take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.core.request import ChoiceRequest
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import ReplicaLoad
from slipstream_kernels.models.page_pool import PagePool
from verify_service.kv_cache.prefix_cache import PrefixCache, PrefixHandle

PAGE_SIZE: Final = 16
NEWS_SECONDS: Final = 0.002
"""From the end of a step to the gateway's knowing of it."""


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """A step takes `step_seconds`, and more for each row of a prompt and each request that decodes.

    The defaults are about an 8B model on one H200: 25,000 tokens of prompts a second, 4 ms a step of one request.
    """

    step_seconds: float = 3.9e-3
    prompt_row_seconds: float = 40e-6
    decode_seconds: float = 40e-6
    chunk: int = 512
    lines: int = 64
    pages: int = 14_000


@dataclass(slots=True, eq=False)
class Request:
    """A request of a workload, and what becomes of it; times in virtual seconds."""

    arrival: float
    choice: ChoiceRequest
    output_tokens: int
    number: int = 0
    first_token_at: float = 0.0
    cached_tokens: int = 0
    computed: int = 0
    emitted: int = 0
    lease: PrefixHandle | None = None
    pages: list[int] = field(default_factory=list)
    prompt: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = tuple(self.choice.prompt_token_ids)

    @property
    def prefilled(self) -> bool:
        return self.computed >= len(self.prompt)


class Machine:
    """Continuous batching with chunked prefill; requests start in order, but not while one computes what they share.

    `later` calls a function after so many virtual seconds. Pages for a request's whole length are taken as it starts.
    `ended` is called for each request that has, once the gateway knows.
    """

    def __init__(
        self,
        costs: MachineCosts,
        later: Callable[[float, Callable[[], None]], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.routing = ReplicaLoad()
        self.page_size = PAGE_SIZE
        self.max_running = costs.lines
        self.load = 0
        self._costs = costs
        self._later = later
        self._ended = ended
        self._pool = PagePool(costs.pages)
        self._cache = PrefixCache(self._pool, PAGE_SIZE)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._now = 0.0
        self._busy = False
        self._news = 0
        self._cache.watch(wanted=True)

    def submit(self, request: Request, prompt: PromptPrefix | None, now: float) -> None:
        """Send a request, as Replica.submit does."""
        self.load += 1
        self.routing.enter(request.number, prompt, now)
        self._waiting.append(request)
        if not self._busy:
            self._busy, self._now = True, now
            self._step()

    def _step(self) -> None:
        self._start()
        rows: list[tuple[Request, int]] = []
        left = self._costs.chunk
        for request in self._running:
            count = min(left, len(request.prompt) - request.computed)
            if count > 0:
                rows.append((request, count))
                left -= count
        decodes = [request for request in self._running if request.prefilled]
        if not (rows or decodes):
            self._busy = False
            return
        costs = self._costs
        seconds = costs.step_seconds + costs.prompt_row_seconds * (costs.chunk - left)
        self._now += seconds + costs.decode_seconds * len(decodes)
        self._later(self._now, lambda: self._finish(rows, decodes))

    def _finish(self, rows: list[tuple[Request, int]], decodes: list[Request]) -> None:
        begun: list[int] = []
        ended = 0
        for request, count in rows:
            request.computed += count
            if request.prefilled:
                request.first_token_at, request.emitted = self._now, 1
                begun.append(request.number)
                self._share(request)
        for request in decodes:
            request.emitted += 1
        for request in [each for each in self._running if each.prefilled and each.emitted >= each.output_tokens]:
            ended += 1
            self._end(request)
        self._later(self._now + NEWS_SECONDS, lambda: self._tell(begun, ended))
        self._step()

    def _tell(self, begun: list[int], ended: int) -> None:
        """What a session's message carries comes to the gateway."""
        if (events := self._cache.take_events()) is not None:
            self._news += 1
            self.routing.prefixes.take(self._news, events.added, events.evicted, snapshot=events.whole)
        for number in begun:
            self.routing.leave(number)
        self.load -= ended
        for _ in range(ended):
            self._ended()

    def _start(self) -> None:
        blocked: deque[Request] = deque()
        while self._waiting and len(self._running) < self._costs.lines:
            request = self._waiting.popleft()
            if self._will_share(request):
                blocked.append(request)
            elif not self._begin(request):
                blocked.append(request)
                break
        self._waiting.extendleft(reversed(blocked))

    def _will_share(self, request: Request) -> bool:
        """Whether one that runs is about to have a page cached that the request lacks."""
        namespace, tokens = (request.choice.tenant, ""), request.prompt
        matched = self._cache.match(namespace, tokens[:-1]) + PAGE_SIZE
        return matched < len(tokens) and any(
            not other.prefilled
            and other.choice.tenant == request.choice.tenant
            and other.prompt[:matched] == tokens[:matched]
            for other in self._running
        )

    def _begin(self, request: Request) -> bool:
        lease = self._cache.acquire((request.choice.tenant, ""), request.prompt[:-1])
        length = len(request.prompt) + request.output_tokens
        missing = -(-length // PAGE_SIZE) - len(lease.pages)
        self._cache.evict(missing - self._pool.free_count)
        if missing > self._pool.free_count:
            self._cache.release(lease)
            return False
        request.lease, request.pages = lease, [*lease.pages, *self._pool.allocate(missing)]
        request.computed = request.cached_tokens = len(lease.pages) * PAGE_SIZE
        self._running.append(request)
        return True

    def _share(self, request: Request) -> None:
        assert request.lease is not None
        tokens = request.prompt
        full = len(tokens) // PAGE_SIZE
        if full > len(request.lease.pages):
            namespace = (request.choice.tenant, "")
            lease = self._cache.extend(namespace, tokens[: full * PAGE_SIZE], request.pages[:full], request.lease)
            request.lease, request.pages[:full] = lease, lease.pages

    def _end(self, request: Request) -> None:
        assert request.lease is not None
        for page in request.pages[len(request.lease.pages) :]:
            self._pool.release(page)
        self._cache.release(request.lease)
        self._running.remove(request)
