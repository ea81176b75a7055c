"""Arrays of log-probabilities become what clients are told."""

from __future__ import annotations

import numpy as np

from slipstream.generation_types import PositionLogprobs, TokenLogprob
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.model_runner.logprobs import chosen_rows, logprob_entries


def test_rows_follow_the_path_to_the_last_token_output() -> None:
    state = admitted(EngineConfig(num_pages=8), (1, 2, 3))
    item = ScheduledRequest(state, 3, TokenTree((4, 5, 6, 7), (-1, -1, 1, 2)))
    decision = VerifyResult(item, AcceptedPath((1, 2), (5, 6, 9)), first_row=10)
    assert chosen_rows(decision, 3) == [10, 12, 13]
    assert chosen_rows(decision, 1) == [10]


def test_entries_hold_plain_numbers() -> None:
    entries = logprob_entries(
        np.array([5, 6], np.int32),
        np.array([-0.5, -1.5], np.float32),
        np.array([1, 3], np.int32),
        np.array([[5, 2], [8, 9]], np.int32),
        np.array([[-0.5, -2.0], [-0.25, -1.0]], np.float32),
    )
    assert entries == (
        PositionLogprobs(TokenLogprob(5, -0.5, 1), (TokenLogprob(5, -0.5, 1), TokenLogprob(2, -2.0, 2))),
        PositionLogprobs(TokenLogprob(6, -1.5, 3), (TokenLogprob(8, -0.25, 1), TokenLogprob(9, -1.0, 2))),
    )
    assert type(entries[0].chosen.token_id) is int
    assert type(entries[0].top[0].logprob) is float


def test_without_competitors_there_is_the_chosen_token() -> None:
    none = np.zeros((1, 0))
    (entry,) = logprob_entries(np.array([5]), np.array([-0.5]), np.array([2]), none, none)
    assert entry == PositionLogprobs(TokenLogprob(5, -0.5, 2), ())
