"""Repeated keys of `logit_bias`, of which a JSON reader keeps one without a word."""

from __future__ import annotations

import re
from typing import Final

from slipstream.rpc.errors import InvalidArgumentError

_OBJECTS: Final = re.compile(rb'"logit_bias"\s*:\s*\{([^{}]*)\}')
"""The object as the schema has it: without objects or texts inside, but for the keys. Within a JSON string no such
match can begin, as quotes are escaped there."""


def check_repeated_keys(body: bytes | bytearray, entries: int) -> None:
    """InvalidArgumentError unless `body` writes `logit_bias` once and each of its keys once.

    The body has been found valid, and its `logit_bias` was read with so many `entries`.
    """
    objects = _OBJECTS.findall(body)
    if len(objects) > 1 or any(found.count(b":") != entries for found in objects):
        raise InvalidArgumentError("logit_bias names a token twice", field="logit_bias")
