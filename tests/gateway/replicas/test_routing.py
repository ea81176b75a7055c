"""Prefixes are found, requests follow them, and what is not cached is spread."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import RoutingName
from gateway.core.request import ChoiceRequest, Sampling
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import ReplicaLoad
from gateway.replicas.routing import (
    ANEW,
    CHOICE_TOKENS,
    LEAD,
    LEAST_LEAD,
    WAITING_TOKENS,
    LeastLoaded,
    Prefix,
    Random,
    RoutingPolicy,
    policy_named,
)
from slipstream.prefix_hash import PromptHashes, hash_prompt, mark, marks_within

SIZE = 4


class Standing:
    def __init__(self, page_size: int = SIZE, max_running: int = 64) -> None:
        self.routing = ReplicaLoad()
        self.page_size = page_size
        self.load = 0
        self.max_running = max_running


def request(length: int, *, first: int = 0, tenant: str = "t") -> ChoiceRequest:
    return ChoiceRequest(array("I", range(first, first + length)), Sampling(), tenant=tenant)


def hold(load: ReplicaLoad, tokens: int, *, tenant: str = "t") -> None:
    names = PromptPrefix.of(request(tokens, tenant=tenant), SIZE).names
    load.prefixes.take(1, names, (), snapshot=True)


@given(length=st.integers(0, 600), held=st.lists(st.integers(0, 600), min_size=1, max_size=9))
@settings(max_examples=100)
def test_each_cache_is_credited_with_its_longest_named_prefix(length: int, held: list[int]) -> None:
    prompt = PromptPrefix.of(request(length), SIZE)
    for tokens in held:
        load = ReplicaLoad()
        hold(load, tokens)
        pages = min(length, tokens) // SIZE
        count = load.prefixes.count(prompt.names)
        assert count == marks_within(pages)
        assert prompt.cached_tokens(count) == (min(mark(count) * SIZE, length - 1) if pages else 0)
        assert prompt.cached_tokens(count) >= 8 / 9 * pages * SIZE - 1


def test_hashes_made_with_the_tokens_are_used_if_they_are_of_the_same_pages() -> None:
    plain = request(100)
    assert PromptPrefix.of(replace(plain, prompt_hashes=hash_prompt(plain.prompt_token_ids, SIZE)), SIZE).names == (
        PromptPrefix.of(plain, SIZE).names
    )
    made_up = replace(plain, prompt_hashes=PromptHashes(SIZE, [1, 2]))
    assert len(PromptPrefix.of(made_up, SIZE).names) == 2
    assert PromptPrefix.of(made_up, 2 * SIZE) == PromptPrefix.of(plain, 2 * SIZE)


def test_a_request_goes_where_its_prefix_is_unless_that_service_has_too_much_to_do() -> None:
    replicas = [Standing() for _ in range(3)]
    hold(replicas[1].routing, 400)
    policy = Prefix()
    assert policy.rank(request(420), replicas)[0][0] is replicas[1]
    assert policy.rank(request(420, tenant="another"), replicas)[0][0] is replicas[0]
    most = ANEW * mark(marks_within(400 // SIZE)) * SIZE // CHOICE_TOKENS
    assert most < LEAD * replicas[1].max_running
    replicas[1].load = most - 1
    assert policy.rank(request(420), replicas)[0][0] is replicas[1]
    replicas[1].load = most + 1
    assert policy.rank(request(420), replicas)[0][0] is not replicas[1]
    replicas[1].load, replicas[1].routing.queued_tokens = 0, 1000
    assert policy.rank(request(420), replicas)[0][0] is not replicas[1]


def test_a_burst_of_one_prefix_follows_the_first_and_new_groups_spread() -> None:
    replicas = [Standing() for _ in range(4)]
    policy, first_of = Prefix(), dict[int, Standing]()
    for number, group in enumerate((0, 10_000, 20_000, 30_000)):
        ranked, prompt = policy.rank(request(400, first=group), replicas)
        first_of[group] = ranked[0]
        ranked[0].routing.enter(number, prompt, float(number))
        assert ranked[0].routing.queued_tokens == 400
    assert len(set(map(id, first_of.values()))) == 4
    for number, (group, replica) in enumerate(first_of.items()):
        ranked, prompt = policy.rank(request(410, first=group), replicas)
        assert ranked[0] is replica
        replica.routing.enter(100 + number, prompt, float(number))
        assert replica.routing.queued_tokens < 400 + 50
    for number, replica in enumerate(first_of.values()):
        replica.routing.leave(100 + number)
        assert policy.rank(request(410, first=10_000 * number), replicas)[0][0] is replica
        replica.routing.leave(number)
        replica.routing.leave(number)
        assert replica.routing.queued_tokens == 0
    # Nothing was told to be cached: the provisional entries are gone, and the least recently used service is first.
    assert policy.rank(request(400, first=20_000), replicas)[0][0] is first_of[0]


def best(replicas: list[Standing], tokens: int = 4000) -> Standing:
    return Prefix().rank(request(tokens), replicas)[0][0]


def test_what_all_requests_share_is_computed_once_more_before_one_service_is_far_ahead() -> None:
    for lines, lead in ((64, 32), (8, 4), (3, LEAST_LEAD)):
        first, second = Standing(max_running=lines), Standing(max_running=lines)
        hold(first.routing, 4000)
        first.load = lead
        assert best([first, second]) is first
        first.load += 1
        assert best([first, second]) is second


def test_a_free_line_goes_before_a_prefix_and_waiting_choices_weigh_more_than_running_ones() -> None:
    first, second = Standing(max_running=16), Standing(max_running=16)
    hold(first.routing, 4000)
    first.load, second.load = 15, 10
    assert best([first, second]) is first
    first.load = 16
    assert best([first, second]) is second
    second.load = 16
    assert best([first, second]) is first
    worth = ANEW * mark(marks_within(1200 // SIZE)) * SIZE // (WAITING_TOKENS + CHOICE_TOKENS)
    assert worth == 1  # of 1,200 tokens
    for ahead, expected in ((worth, first), (worth + 1, second)):
        first.load = 16 + ahead
        assert best([first, second], 1200) is expected


def test_prompts_whose_logprobs_are_asked_for_follow_no_prefix() -> None:
    first, second = Standing(), Standing()
    hold(second.routing, 400)
    assert best([first, second], 400) is second
    whole = replace(request(400), sampling=Sampling(prompt_logprobs=0))
    ranked, prompt = Prefix().rank(whole, [first, second])
    assert ranked == [first, second]
    assert prompt is not None
    assert prompt.cached_tokens(5) == 0


def test_policies_have_the_names_of_the_flag() -> None:
    for name in get_args(RoutingName):
        policy: RoutingPolicy = policy_named(name)
        assert policy.name == name


def test_without_knowledge_of_caches_the_fewest_choices_decide() -> None:
    replicas = [Standing(0), Standing(0), Standing(SIZE)]
    for replica, choices in zip(replicas, (3, 1, 2), strict=True):
        replica.load = choices
    for policy in (Prefix(), LeastLoaded()):
        ranked, prompt = policy.rank(request(40), replicas)
        assert ranked == [replicas[1], replicas[2], replicas[0]]
        assert prompt is None
    assert {id(Random(seed).rank(request(40), replicas)[0][0]) for seed in range(20)} == set(map(id, replicas))
    assert Prefix().rank(request(40), [])[0] == []
    assert Prefix().rank(request(40), replicas[:1]) == (replicas[:1], None)
