"""Which KV pages each running request holds."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream_kernels.models.page_pool import PagePool
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.hidden_states.store import HiddenStateStore
from verify_service.kv_cache.cache_events import CacheEvents
from verify_service.kv_cache.page_table import PageTable
from verify_service.kv_cache.prefix_cache import PrefixCache


class KVCacheManager:
    """Pages of running requests, the prefix cache behind them, and the page table the kernels read.

    `features` lie beside the pages, and are dropped with them.
    Row `kv.req_index` of `page_table` mirrors `kv.pages` of a request. Each page is owned by one request, by the prefix
    cache, or by nobody. A page may change hands while a step is under way: devices run steps in order, so that its next
    owner writes it after the step has read it.
    """

    def __init__(self, config: EngineConfig, max_context: int, hidden_size: int = 0) -> None:
        self.max_context = max_context
        self._page_size = config.page_size
        self._caching = config.prefix_cache
        self._total = config.num_pages
        self.features = HiddenStateStore(
            num_pages=config.num_pages,
            page_size=config.page_size,
            hidden_size=hidden_size,
            limit=config.feature_bytes,
        )
        self._pool = PagePool(config.num_pages, self.features.forget)
        self._cache = PrefixCache(self._pool, config.page_size)
        self.page_table = PageTable(config.max_running, -(-max_context // config.page_size))

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        """Pages held by nobody."""
        return self._pool.free_count

    @property
    def cached(self) -> int:
        """Pages held by the prefix cache alone."""
        return self._cache.evictable

    @property
    def available(self) -> int:
        """Pages that can be had without taking any from a request."""
        return self._pool.free_count + self._cache.evictable

    def watch_cache(self, *, wanted: bool) -> None:
        """See PrefixCache.watch."""
        self._cache.watch(wanted=wanted)

    def take_cache_events(self) -> CacheEvents | None:
        """See PrefixCache.take_events."""
        return self._cache.take_events()

    def fits(self, state: RequestState) -> bool:
        """Whether a waiting request's tokens so far could be held without taking pages from another."""
        return -(-len(state.tokens) // self._page_size) <= self.available

    def would_share(self, running: RequestState, waiting: RequestState) -> bool:
        """Whether `running`, once its prompt is computed, will spare `waiting` a page that the cache lacks now."""
        if not self._caching or running.namespace != waiting.namespace:
            return False
        tokens, size = waiting.tokens[: waiting.num_reusable_tokens], self._page_size
        if running.tokens[:size] != tokens[:size]:
            return False
        matched = self._cache.match(waiting.namespace, tokens)
        length = matched + self._page_size
        return length <= len(tokens) and running.tokens[:length] == tokens[:length]

    def begin(self, state: RequestState) -> None:
        """Give a request that `fits` and took row `state.kv.req_index` its cached prefix, and pages for all its tokens.

        What is not `reusable` is never taken from the cache, so that its logits exist.
        """
        state.prefilled = False
        if self._caching:
            state.kv.prefix_lease = self._cache.acquire(state.namespace, state.tokens[: state.num_reusable_tokens])
            state.kv.pages = list(state.kv.prefix_lease.pages)
            state.kv.num_computed_tokens = state.kv.num_written_tokens = len(state.kv.pages) * self._page_size
            self.page_table.write(state.kv.req_index, 0, state.kv.pages)
        grown = self.grow(state, len(state.tokens))
        assert grown

    def grow(self, state: RequestState, length: int) -> bool:
        """Hold pages for `length` tokens; takes free and evictable ones. False, and nothing changed, if they lack."""
        held = len(state.kv.pages)
        if length <= held * self._page_size:
            return True
        missing = -(-length // self._page_size) - held
        short = missing - self._pool.free_count
        if short > 0:
            if short > self._cache.evictable:
                return False
            self._cache.evict(short)
        pages = self._pool.allocate(missing)
        self.page_table.write(state.kv.req_index, held, pages)
        state.kv.pages.extend(pages)
        return True

    def grow_up_to(self, state: RequestState, length: int) -> int:
        """Hold pages for as many of `length` tokens as can be had; returns how many tokens fit."""
        if length <= len(state.kv.pages) * self._page_size:
            return length
        room = (len(state.kv.pages) + self.available) * self._page_size
        reachable = min(length, room)
        self.grow(state, reachable)
        return reachable

    def reclaim(self, states: Iterable[RequestState]) -> int:
        """Take back pages held beyond a request's last token, left over from rejected trees; returns how many."""
        reclaimed = 0
        for state in states:
            needed = -(-(state.length + state.max_inflight_drafts) // self._page_size)
            while len(state.kv.pages) > needed:
                self._pool.release(state.kv.pages.pop())
                reclaimed += 1
        return reclaimed

    def cache_full_pages(self, state: RequestState) -> None:
        """Put the full pages written so far into the prefix cache; the request goes on using them."""
        if state.kv.prefix_lease is None:
            return
        full = state.kv.num_written_tokens // self._page_size
        if full > len(state.kv.prefix_lease.pages):
            state.kv.prefix_lease = self._cache.extend(
                state.namespace, state.tokens[: full * self._page_size], state.kv.pages[:full], state.kv.prefix_lease
            )
            state.kv.pages[:full] = state.kv.prefix_lease.pages
            self.page_table.write(state.kv.req_index, 0, state.kv.prefix_lease.pages)

    def end(self, state: RequestState, *, keep: bool) -> None:
        """Take all pages from a request. Full pages stay in the prefix cache if `keep` is set."""
        if keep:
            self.cache_full_pages(state)
        shared = 0
        if state.kv.prefix_lease is not None:
            shared = len(state.kv.prefix_lease.pages)
            self._cache.release(state.kv.prefix_lease)
        for page in state.kv.pages[shared:]:
            self._pool.release(page)
        state.kv.prefix_lease = None
        state.kv.pages = []
        state.kv.num_computed_tokens = state.kv.num_written_tokens = 0
