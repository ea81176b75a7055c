"""What text workers hand over, and the names of their jobs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final

from gateway.core.request import Sampling
from gateway.output_parsers.registry import AnswerForm
from slipstream.generation_types import SpeculationOptions
from slipstream.prefix_hash import PromptHashes

_TYPECODE: Final = "I"


class WorkerTask(IntEnum):
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
    WorkerTask.CHAT: "messages",
    WorkerTask.COMPLETION: "prompt",
    WorkerTask.GENERATE: "prompt",
    WorkerTask.TOKENIZE: "prompt",
    WorkerTask.TOKENIZE_HTTP: "prompt",
    WorkerTask.DETOKENIZE_HTTP: "tokens",
}
"""What an error names where the job cannot say more."""


def token_array(token_ids: Iterable[int]) -> array[int]:
    """Token ids at four bytes each. OverflowError beyond 32 bits."""
    return array(_TYPECODE, token_ids)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request of either API: read, checked as far as its texts go, and with its prompts as token ids.

    `wires` and `hashes` are of the prompts, as ChoiceRequest.prompt_wire and prompt_hashes have them, `choices` is the
    number of choices for each prompt, and `echoes` are the prompts' texts where the answer repeats them.
    """

    prompts: tuple[array[int], ...]
    sampling: Sampling
    wires: tuple[bytes, ...]
    hashes: tuple[PromptHashes | None, ...]
    prompt_field: str
    speculation: SpeculationOptions | None
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
    answer: AnswerForm | None = None
    grammar_field: str = ""
    """The field that asks for the grammar of `sampling`, where the API has another name for it."""
    grammar_wire: bytes = b""
    """That grammar as ChoiceRequest.grammar_wire has it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as one flat tuple, which is several times as fast as dataclasses in one another."""
        prompts = tuple(prompt.tobytes() for prompt in self.prompts)
        return _restored, (prompts, _of_sampling(self.sampling), *_of_the_rest(self))


_of_sampling: Final = attrgetter(*(each.name for each in fields(Sampling)))
_of_the_rest: Final = attrgetter(*(each.name for each in fields(Prepared)[2:]))


def _restored(prompts: tuple[bytes, ...], sampling: tuple[Any, ...], *rest: Any) -> Prepared:
    return Prepared(tuple(array(_TYPECODE, prompt) for prompt in prompts), Sampling(*sampling), *rest)
