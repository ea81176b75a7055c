from __future__ import annotations

import pytest

from gateway.openai.logit_bias import check_repeated_keys
from slipstream.rpc.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "body",
    [
        b'{"logit_bias": {"7": 1, "8": 1}}',
        b'{"logit_bias": null}',
        b'{"metadata": {"logit_bias": {"7": 1, "8": 2, "9": 3}}, "logit_bias": {"7": 1}}',
        b'{"metadata": {"a": 1, "a": 2}, "prompt": "\\"logit_bias\\": {\\"7\\": 1, \\"7\\": 2}", "logit_bias": {}}',
    ],
)
def test_each_token_once(body: bytes) -> None:
    check_repeated_keys(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"logit_bias": {"7": 1, "8": 2, "7": 1}}',
        b'{"logit_bias": {"7": 1, "\\u0037": 1}}',
        b'{"logit_bias": {"7": 1}, "logit_bias": {"8": 1}}',
    ],
)
def test_a_token_named_twice_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="logit_bias names a token twice"):
        check_repeated_keys(body)
