"""Repeated keys of `logit_bias`, of which a JSON reader keeps one without a word."""

from __future__ import annotations

import json
from typing import Any

from slipstream.rpc.errors import InvalidArgumentError


def check_repeated_keys(body: bytes | bytearray) -> None:
    """InvalidArgumentError unless the object `body` has `logit_bias` once and that has each of its keys once.

    The body has been found valid. Objects elsewhere in it, as in `metadata`, are not looked at.
    """
    fields: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    biases = [value for key, value in fields if key == "logit_bias"]
    keys = [key for bias in biases for key, _ in bias or ()]
    if len(biases) > 1 or len(set(keys)) < len(keys):
        raise InvalidArgumentError("logit_bias names a token twice", field="logit_bias")
