"""What text workers hand over, and the names of their jobs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gateway.request import Sampling, Speculation

_TYPECODE: Final = "I"


class Job(IntEnum):
    """What a text worker is asked to read."""

    CHAT = 0
    """Body of POST /v1/chat/completions; yields Prepared."""
    COMPLETION = 1
    """Body of POST /v1/completions; yields Prepared."""
    GENERATE = 2
    """GenerateRequest; yields Prepared."""
    TOKENIZE = 3
    """TokenizeRequest; yields the token ids as an array."""
    TOKENIZE_HTTP = 4
    """Body of POST /tokenize; yields the answer's body."""
    DETOKENIZE_HTTP = 5
    """Body of POST /detokenize; yields the answer's body."""


FIELDS: Final = {
    Job.CHAT: "messages",
    Job.COMPLETION: "prompt",
    Job.GENERATE: "prompt",
    Job.TOKENIZE: "prompt",
    Job.TOKENIZE_HTTP: "prompt",
    Job.DETOKENIZE_HTTP: "tokens",
}
"""What an error names where the job cannot say more."""


def token_array(token_ids: Iterable[int]) -> array[int]:
    """Token ids at four bytes each. OverflowError beyond 32 bits."""
    return array(_TYPECODE, token_ids)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request of either API: read, checked as far as its texts go, and with its prompts as token ids.

    `wires` are the prompts as Order.prompt_wire has them, `choices` is the number of choices for each prompt, and
    `echoes` are the prompts' texts where the answer repeats them.
    """

    prompts: tuple[array[int], ...]
    wires: tuple[bytes, ...]
    prompt_field: str
    sampling: Sampling
    speculation: Speculation | None
    stop: tuple[str, ...]
    tenant: str
    adapter_id: str = ""
    choice_index: int = 0
    choices: int = 1
    echoes: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    prompt_logprobs: int | None = None
    """As the caller's field has it; what is computed, be it for an echo, is in `sampling`."""
