"""The radix cache shares full pages only, keeps what is leased, and loses no page."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.prefix_hash import hash_prompt, prefix_salt
from slipstream_kernels.models.page_pool import PagePool
from verify_service.kv_cache import prefix_cache
from verify_service.kv_cache.prefix_cache import Namespace, PrefixCache, PrefixHandle

PAGES = 40
SHORT = st.lists(st.integers(0, 1), min_size=0, max_size=14)
TOKENS = SHORT | st.integers(17, PAGES - 2).map(lambda count: [0] * count)
NAMESPACES = st.sampled_from([("", ""), ("a", ""), ("", "a")])


@dataclass
class User:
    namespace: Namespace
    tokens: tuple[int, ...]
    lease: PrefixHandle
    pages: list[int] = field(default_factory=list)


class CacheMachine(RuleBasedStateMachine):
    """Requests come, compute pages, share them and go, while pages are evicted; `written` is what each page holds."""

    @initialize(page_size=st.integers(1, 4))
    def begin(self, page_size: int) -> None:
        self.size = page_size
        self.pool = PagePool(PAGES)
        self.cache = PrefixCache(self.pool, page_size)
        self.users: list[User] = []
        self.written: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.watched = False
        self.told: set[int] = set()

    @rule(wanted=st.booleans())
    def watch(self, wanted: bool) -> None:  # hypothesis passes it by name
        self.cache.watch(wanted=wanted)
        self.watched = wanted
        self.told = set(self.told if wanted else ())

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def enter(self, namespace: Namespace, tokens: list[int]) -> None:
        lease = self.cache.acquire(namespace, tokens)
        user = User(namespace, tuple(tokens), lease, list(lease.pages))
        self.users.append(user)
        assert self.cache.match(namespace, tokens) == len(lease.pages) * self.size
        full = len(tokens) // self.size
        missing = full - len(lease.pages)
        self.cache.evict(missing - self.pool.free_count)
        if missing <= self.pool.free_count:
            for page in self.pool.allocate(missing):
                assert all(page not in other.pages for other in self.users)
                user.pages.append(page)
                self.written[page] = (namespace, user.tokens[: len(user.pages) * self.size])

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(self.users))
        count = data.draw(st.integers(0, len(user.pages)))
        count = max(count, len(user.lease.pages))
        tokens = user.tokens[: count * self.size]
        user.lease = self.cache.extend(user.namespace, tokens, user.pages[:count], user.lease)
        user.pages[:count] = user.lease.pages
        assert len(user.lease.pages) == count
        assert self.cache.match(user.namespace, tokens) == len(tokens)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        user = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        for page in user.pages[len(user.lease.pages) :]:
            self.pool.release(page)
        self.cache.release(user.lease)

    @rule(count=st.integers(0, PAGES))
    def evict(self, count: int) -> None:
        evictable, free = self.cache.evictable, self.pool.free_count
        given_back = self.cache.evict(count)
        assert given_back == min(count, evictable)
        assert self.pool.free_count == free + given_back

    @invariant()
    def pages_hold_what_their_users_read(self) -> None:
        for user in getattr(self, "users", []):
            for index, page in enumerate(user.pages):
                assert self.written[page] == (user.namespace, user.tokens[: (index + 1) * self.size])

    @invariant()
    def every_page_has_one_owner(self) -> None:
        if not hasattr(self, "users"):
            return
        own = [page for user in self.users for page in user.pages[len(user.lease.pages) :]]
        leased = {page for user in self.users for page in user.lease.pages}
        assert len(set(own)) == len(own)
        assert not leased & set(own)
        assert self.pool.free_count + len(own) + self.cache.pages == PAGES
        assert self.cache.evictable == self.cache.pages - len(leased)

    @invariant()
    def changes_tell_what_is_cached(self) -> None:
        if not hasattr(self, "users"):
            return
        events = self.cache.take_events()
        if not self.watched:
            assert events is None
            return
        if events is not None:
            if events.whole:
                self.told.clear()
            assert self.told.issuperset(events.evicted)
            assert self.told.isdisjoint(events.added)
            self.told = (self.told - set(events.evicted)) | set(events.added)
        assert len(self.told) <= self.cache.pages
        for user in self.users:
            tokens = user.tokens[: len(user.lease.pages) * self.size]
            salt = prefix_salt(*user.namespace)
            assert self.told.issuperset(each ^ salt for each in hash_prompt(tokens, self.size).hashes)

    def teardown(self) -> None:
        for user in getattr(self, "users", []):
            for page in user.pages[len(user.lease.pages) :]:
                self.pool.release(page)
            self.cache.release(user.lease)
        if hasattr(self, "cache"):
            self.cache.clear()
            assert self.cache.pages == 0
            events = self.cache.take_events()
            if self.watched:
                assert set(() if events is None else events.evicted) == self.told
            assert self.pool.free_count == PAGES


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30)


def fill(cache: PrefixCache, pool: PagePool, tokens: list[int], size: int, namespace: Namespace = ("", "")) -> None:
    """One request computes `tokens` and leaves."""
    lease = cache.acquire(namespace, tokens)
    full = len(tokens) // size
    pages = [*lease.pages, *pool.allocate(full - len(lease.pages))]
    cache.release(cache.extend(namespace, tokens[: full * size], pages, lease))


@given(tokens=st.lists(st.integers(0, 3), max_size=30), size=st.integers(1, 8))
@settings(max_examples=50)
def test_never_shares_a_partial_page(tokens: list[int], size: int) -> None:
    pool = PagePool(64)
    cache = PrefixCache(pool, size)
    fill(cache, pool, tokens, size)
    assert cache.pages == len(tokens) // size
    for length in range(len(tokens) + 1):
        assert cache.match(("", ""), tokens[:length]) == length // size * size


def test_namespaces_are_apart() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool, 2)
    fill(cache, pool, [1, 2, 3, 4], 2, ("tenant", ""))
    assert cache.match(("tenant", ""), [1, 2, 3, 4]) == 4
    assert cache.match(("", "tenant"), [1, 2, 3, 4]) == 0
    assert cache.match(("", ""), [1, 2, 3, 4]) == 0


def test_least_recently_used_goes_first_and_from_its_end() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool, 1)
    fill(cache, pool, [1, 1, 1], 1)
    fill(cache, pool, [2, 2, 2], 1)
    cache.release(cache.acquire(("", ""), [1, 1, 1]))
    assert cache.evict(2) == 2
    assert cache.match(("", ""), [2, 2, 2]) == 1
    assert cache.match(("", ""), [1, 1, 1]) == 3


def test_a_lease_protects_its_path_and_nothing_more() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool, 1)
    fill(cache, pool, [1, 2, 3, 4], 1)
    lease = cache.acquire(("", ""), [1, 2])
    assert cache.evictable == 2
    assert cache.clear() == 2
    assert cache.match(("", ""), [1, 2, 3, 4]) == 2
    cache.release(lease)
    assert cache.clear() == 2
    assert pool.free_count == 8


def test_equal_pages_computed_twice_are_kept_once() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool, 1)
    leases = [cache.acquire(("", ""), [7, 8]) for _ in range(2)]
    pages = [pool.allocate(2) for _ in range(2)]
    first = cache.extend(("", ""), [7, 8], pages[0], leases[0])
    second = cache.extend(("", ""), [7, 8], pages[1], leases[1])
    assert first.pages == second.pages == tuple(pages[0])
    assert pool.free_count == 6


def test_many_tenants_leave_no_roots_behind() -> None:
    pool = PagePool(4)
    cache = PrefixCache(pool, 1)
    for tenant in range(3000):
        cache.release(cache.acquire((str(tenant), ""), [1]))
    assert len(cache._roots) <= 1025


@pytest.mark.parametrize("size", [1, 16])
def test_old_eviction_entries_do_not_pile_up(size: int) -> None:
    pool = PagePool(64)
    cache = PrefixCache(pool, size)
    tokens = list(range(4 * size))
    fill(cache, pool, tokens, size)
    for _ in range(1000):
        cache.release(cache.acquire(("", ""), tokens))
    assert len(cache._idle) < 200
    assert cache.clear() == 4


def test_nothing_is_hashed_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PagePool(PAGES)
    cache = PrefixCache(pool, 2)
    cache.watch(wanted=True)
    fill(cache, pool, [1] * 8, 2)
    cache.watch(wanted=False)
    monkeypatch.setattr(prefix_cache, "PrefixHasher", None)
    monkeypatch.setattr(prefix_cache, "prefix_salt", None)
    fill(cache, pool, [1] * 4 + [2] * 60, 2)
    assert cache.evict(10) == 10
    assert cache.take_events() is None
