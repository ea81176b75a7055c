"""JSON bodies of the OpenAI API, over the HTTP endpoint."""

from __future__ import annotations

import json
from random import Random
from typing import Any, ClassVar

from fuzz.http_answers import read_answers
from fuzz.in_gateway import MODEL
from fuzz.json_values import changed, text_of
from fuzz.raw_bytes import joined, parted
from fuzz.target import BrokenError
from fuzz.targets.http_parser import HttpParser, check_answer, json_request

_PATHS = (b"/v1/completions", b"/v1/chat/completions")
_COMMON: dict[str, Any] = {
    "model": MODEL, "max_tokens": 2, "n": 1, "stream": True, "stream_options": {"include_usage": True},
    "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5,
    "logit_bias": {"7": 5, "8": -5.5},
    "seed": 3, "stop": ["a", "b"], "user": "tenant", "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1,
    "min_tokens": 1,
    "stop_token_ids": [4], "ignore_eos": True, "return_token_ids": True,
    "speculation": {"enabled": True, "proposer": "ngram", "max_nodes": 8, "max_depth": 4}, "metadata": {"a": "b"},
    "service_tier": "auto", "skip_special_tokens": True, "bad_words": [], "priority": 0, "wings": None,
}  # fmt: skip
_CHAT: dict[str, Any] = {
    "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 2, "response_format": {"type": "text"},
    "modalities": ["text"], "store": False, "tool_choice": "none", "tools": None, "reasoning_effort": None,
}  # fmt: skip
_PLAIN: dict[str, Any] = {"logprobs": 2, "echo": True, "best_of": 1, "suffix": None}
_MESSAGES: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "why?"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "why?"}]}],
    [{"role": "user", "content": "a", "name": "b"}, {"role": "assistant", "content": None, "tool_calls": None}],
    [{"role": "assistant", "content": "a", "tool_calls": [], "provider_specific_fields": {"a": []}, "reasoning": "b"}],
)
_PROMPTS: tuple[Any, ...] = ("a lighthouse", ["a", "b"], [5, 6, 7], [[5], [6, 7]], "<|end|>", "é東\U0001f600")


class OpenAiBodies(HttpParser):
    """As the HTTP parser; a body that was served is one object of JSON in UTF-8 with a known model."""

    name: ClassVar[str] = "openai_bodies"
    share: ClassVar[int] = 70

    def make(self, random: Random) -> bytes:
        """A body with some members, several places of it changed."""
        chat = random.random() < 0.5
        members: dict[str, Any] = {**_COMMON, **(_CHAT if chat else _PLAIN)}
        names = random.sample(list(members), random.choice((0, 1, 2, 4, 8)))
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
        body |= {"messages": random.choice(_MESSAGES)} if chat else {"prompt": random.choice(_PROMPTS)}
        body |= {name: members[name] for name in names}
        value: Any = body
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            value = changed(random, value)
        path = _PATHS[chat]
        return joined([path, text_of(random, value)])

    def check(self, data: bytes) -> None:
        path, body = [*parted(data, 2), b"", b""][:2]
        if path not in _PATHS:
            return
        answered = self._inside.run(self._inside.converse([json_request(path, body)]))
        answers = read_answers(answered, ["POST"])
        if len(answers) != 1:
            raise BrokenError(f"answered {len(answers)} times: {answered[:500]!r}")
        check_answer(answers[0])
        self._inside.check_unheard()
        if answers[0].status != 200:
            return
        try:
            asked = json.loads(body)
        except ValueError as error:
            raise BrokenError(f"served, though it is no JSON: {error}") from error
        if not isinstance(asked, dict) or asked.get("model") not in ("", MODEL):
            raise BrokenError(f"served as {MODEL}: {asked!r:.300}")
