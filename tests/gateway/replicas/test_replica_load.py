"""Prompts weigh until their first token, and news that stopped are found out by the hits that fail to come."""

from __future__ import annotations

from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import SHORT_HITS, ReplicaLoad

PAGE = 4
NAMES = [11, 12, 13]
PROMPT = PromptPrefix(NAMES, 14, PAGE)


def told(*names: int) -> ReplicaLoad:
    load = ReplicaLoad()
    load.prefixes.take(1, names, (), snapshot=True)
    return load


def test_a_prompt_weighs_what_is_not_cached_until_its_first_token() -> None:
    load = told(11)
    load.enter(1, PROMPT, 5.0)
    load.enter(2, PROMPT, 6.0, received=3)  # what the first one leaves is expected already
    assert load.queued_tokens == (14 - 4) + (14 - 12) + 3
    assert (load.used, load.sent, load.hit_tokens, load.computed_tokens) == (6.0, 2, 4 + 12, 10 + 2)
    assert load.leave(1, 4)
    assert load.queued_tokens == 5
    assert load.prefixes.count(NAMES) == 1
    assert load.leave(1)
    assert load.leave(2)
    assert load.queued_tokens == 0


def ask(load: ReplicaLoad, number: int, cached_tokens: int | None) -> bool:
    load.enter(number, PROMPT, 0.0)
    return load.leave(number, cached_tokens)


def test_hits_that_fail_to_come_while_nothing_is_told_void_what_was_told() -> None:
    load = told(*NAMES)
    for number in range(1, SHORT_HITS):
        assert ask(load, number, 0)
    assert load.prefixes.count(NAMES) == 3
    assert not ask(load, SHORT_HITS, 0)
    assert load.prefixes.count(NAMES) == 0
    assert load.prefixes.sequence is None  # a snapshot is wanted
    load.prefixes.take(9, NAMES, (), snapshot=True)
    for number in range(100, 99 + SHORT_HITS):
        assert ask(load, number, 0)
    assert load.prefixes.count(NAMES) == 3


def test_news_hits_and_answers_that_say_nothing_excuse_a_service() -> None:
    load = told(*NAMES)
    for number in range(1, 4 * SHORT_HITS):
        if number % 2:
            load.enter(number, PROMPT, 0.0)
            load.prefixes.take(number // 2 + 2, [number], (), snapshot=False)  # as of the pages that were computed
            assert load.leave(number, 0)
        else:
            assert ask(load, number, 12 - PAGE)  # the last page is not taken where the prompt ends with it
            assert ask(load, 1000 + number, None)
    whole = PromptPrefix(NAMES, 14, PAGE, computed_whole=True)
    for number in range(2000, 2000 + 2 * SHORT_HITS):
        load.enter(number, whole, 0.0)
        assert load.queued_tokens == 14
        assert load.leave(number, 0)
    assert load.prefixes.count(NAMES) == 3


def test_a_session_that_breaks_leaves_no_suspicion() -> None:
    load = told(*NAMES)
    for number in range(1, SHORT_HITS):
        assert ask(load, number, 0)
    load.clear()
    load.prefixes.take(1, NAMES, (), snapshot=True)
    assert ask(load, SHORT_HITS, 0)
