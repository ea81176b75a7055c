from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream import SamplingParams


def test_what_vllm_leaves_open_is_left_open():
    given = SamplingParams(
        top_k=-1, stop=None, stop_token_ids=None, logit_bias=None, bad_words=[], skip_special_tokens=True
    )
    options = given.options()
    assert (options["top_k"], options["stop"], options["stop_token_ids"], options["logit_bias"]) == (0, (), (), {})
    assert "seed" not in options
    assert replace(given, n=2).n == 2


def test_numbers_of_other_libraries_are_numbers():
    assert SamplingParams(seed=np.int64(4), temperature=np.float32(0.5), top_p=1).options()["seed"] == 4


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"temperature": "0.7"}, TypeError, "SamplingParams: temperature must be float, got str: '0.7'"),
        ({"temperature": None}, TypeError, "temperature must be float, got NoneType"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens must be int or None, got float"),
        ({"n": True}, TypeError, "n must be int, got bool"),
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"top_k": -2}, ValueError, "top_k must be at least -1, got -2"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos must be bool, got int"),
        ({"stop": 5}, TypeError, "stop must be a list of str, got int"),
        ({"stop": ["a", 5]}, TypeError, r"stop\[1\] must be str, got int"),
        ({"stop_token_ids": "13"}, TypeError, "stop_token_ids must be a list of int, got str"),
        ({"logit_bias": [1]}, TypeError, "logit_bias must be a mapping, got list"),
        ({"logit_bias": {"1": 2.0}}, TypeError, "logit_bias: a token id must be int, got str"),
        ({"extra_args": 1}, ValueError, "SamplingParams: extra_args=1 is not offered, only None"),
        ({"skip_special_tokens": False}, ValueError, "skip_special_tokens=False is not offered, only True"),
        ({"best": 2}, TypeError, "'best'"),
    ],
)
def test_what_will_not_do_is_named(given, error, words):
    with pytest.raises(error, match=words):
        SamplingParams(**given)
