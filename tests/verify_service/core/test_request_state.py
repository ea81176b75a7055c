"""What is derived from a request's state."""

from __future__ import annotations

from slipstream.generation_types import FinishReason
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams

CONFIG = EngineConfig(num_pages=64)
EOS = 2


def test_depth_left_leaves_room_for_the_bonus_token() -> None:
    state = admitted(CONFIG, (1, 3, 4), sampling=SamplingParams(seed=0, max_tokens=5))
    for expected in (4, 3, 2, 1, 0):
        assert state.depth_left == expected
        assert state.finish_reason is None
        state.tokens.append(9)
    assert state.finish_reason is FinishReason.LENGTH


def test_remaining_counts_tokens_without_kv() -> None:
    state = admitted(CONFIG, (1, 3, 4))
    assert state.num_unscheduled_tokens == 3
    state.kv.num_computed_tokens = 2
    assert state.num_unscheduled_tokens == 1


def test_only_output_tokens_stop() -> None:
    assert admitted(CONFIG, (1, EOS)).finish_reason is None
    assert admitted(CONFIG, (1, 3), output=(EOS,)).finish_reason is FinishReason.STOP
    assert (
        admitted(CONFIG, (1, 3), output=(EOS,), sampling=SamplingParams(seed=0, ignore_eos=True)).finish_reason is None
    )


def test_tokens_under_way_count_as_soon_as_a_step_decides_them() -> None:
    state = admitted(CONFIG, (1, 3, 4), sampling=SamplingParams(seed=0, max_tokens=3))
    state.kv.num_computed_tokens, state.num_output_placeholders = 4, 2
    assert (state.length, state.num_unscheduled_tokens, state.depth_left) == (5, 1, 0)
    assert state.finish_reason is None


class Follower:
    """A grammar that follows whatever comes."""

    def __init__(self) -> None:
        self.followed: list[int] = []

    def is_at(self, length: int) -> bool:
        return length == len(self.followed)

    def follow_output(self, tokens: list[int]) -> None:
        self.followed = tokens


def test_a_grammar_is_brought_to_the_output_where_it_is_not_there_yet() -> None:
    state, grammar = admitted(CONFIG, (1, 3), output=(5, 6)), Follower()
    state.follow_output()
    assert state.unfollowed is None, "there is no grammar"
    state.grammar = grammar  # type: ignore[assignment]  # as much of one as is asked here
    assert state.unfollowed == (grammar, [5, 6])
    state.follow_output()
    assert (grammar.followed, state.unfollowed) == ([5, 6], None)
