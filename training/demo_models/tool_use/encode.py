"""Conversations with tools as tokens and weights, rendered by the chat template that serves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from slipstream.chat_template import ChatTemplate
from training.demo_models.mixture import own_records
from training.demo_models.tokenizer import BEGIN, CHAT_TEMPLATE, END_OF_TURN, token_id
from training.demo_models.tool_use.conversations import BARE, Made, Maker

CHUNK: Final = 2048
LONGEST_CHAT: Final = 240
"""Characters of a question and of an answer of the corpus that stand within other conversations."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """Documents: tokens uint16 [N], weights float16 [N] of each as a prediction, lengths int64 [D]."""

    tokens: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float16]
    lengths: npt.NDArray[np.int64]

    @staticmethod
    def joined(parts: Sequence[Weighted]) -> Weighted:
        """The documents of all."""
        return Weighted(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )


def template() -> ChatTemplate:
    """The demo model's."""
    return ChatTemplate(CHAT_TEMPLATE, {"bos_token": BEGIN})


def short_chats(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Questions of one turn and their answers, both short; what the model says of itself several times."""
    found = []
    own = [record for record in own_records() for _ in range(40)]
    for record in (*records, *own):
        messages = record.get("messages", ())
        if len(messages) != 2 or record["kind"] not in ("chat", "math") or messages[0]["role"] != "user":
            continue
        question, answer = (message["content"].strip() for message in messages)
        if question and answer and max(len(question), len(answer)) <= LONGEST_CHAT:
            found.append((question, answer))
    return found


def prompt_text(made: Made, rendering: ChatTemplate) -> str:
    """The conversation up to its last answer."""
    return rendering.render(made.messages[:-1], tools=made.tools)


class ToolEncoder:
    """Turns conversations into tokens. One per worker process."""

    def __init__(self, tokenizer_path: Path, longest: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.longest = longest
        self._template = template()
        self._assistant = token_id(self.tokenizer, "<|assistant|>")
        self._end = token_id(self.tokenizer, END_OF_TURN)

    def encode(self, made: Sequence[Made]) -> Weighted:
        """All conversations that are no longer than `longest` tokens; answers weigh 1, of BARE ones their values."""
        texts = [self._template.render(each.messages, tools=each.tools, add_generation_prompt=False) for each in made]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        tokens, weights, lengths = [], [], []
        for each, text, found in zip(made, texts, encoded, strict=True):
            if len(found.ids) > self.longest:
                continue
            ids = np.array(found.ids, dtype=np.uint16)
            weight = self._answers(ids)
            if each.kind == BARE:
                begin = len(text) - len(f"{each.messages[-1]['content']}{END_OF_TURN}")
                free = np.array(structure(text, begin))
                for index in np.flatnonzero(weight).tolist():
                    first, last = found.offsets[index]
                    weight[index] = 0.0 if free[first:last].all() else 1.0
            tokens.append(ids)
            weights.append(weight)
            lengths.append(len(ids))
        return Weighted(np.concatenate(tokens), np.concatenate(weights), np.array(lengths, dtype=np.int64))

    def _answers(self, ids: npt.NDArray[np.uint16]) -> npt.NDArray[np.float16]:
        """1 for what follows `<|assistant|>`, the turn's end included."""
        weights = np.zeros(len(ids), dtype=np.float16)
        ends = np.flatnonzero(ids == self._end)
        for begin in np.flatnonzero(ids == self._assistant).tolist():
            behind = ends[ends > begin]
            weights[begin + 1 : behind[0] + 1 if len(behind) else len(ids)] = 1.0
        return weights


def structure(text: str, begin: int) -> list[bool]:
    """For each letter of `text`, whether it is the first bracket or part of a key in the JSON from `begin` on.

    A grammar forces these, so that whoever has not named the keys in the question need not learn them.
    """
    free = [False] * len(text)
    free[begin] = True
    place = begin
    while place < len(text):
        if text[place] != '"':
            place += 1
            continue
        close = place + 1
        while close < len(text) and text[close] != '"':
            close += 2 if text[close] == "\\" else 1
        if text[close + 1 : close + 2] == ":":
            free[place : close + 1] = [True] * (close + 1 - place)
        place = close + 1
    return free


def _chunk(arguments: tuple[str, int, int, int, str]) -> Weighted:
    """One task of the pool: CHUNK conversations whose first has this number."""
    tokenizer_path, longest, seed, number, chats = arguments
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    maker = Maker.of_training([tuple(pair) for pair in json.loads(Path(chats).read_text())])
    choose = Random(seed * 1_000_003 + number)
    return ToolEncoder(Path(tokenizer_path), longest).encode([maker.make(choose) for _ in range(CHUNK)])


def encode_made(
    pool: ProcessPoolExecutor, tokenizer_path: Path, longest: int, seed: int, count: int, chats: Path
) -> Weighted:
    """About `count` conversations to train on; the result does not depend on the number of workers.

    `chats`: a file of JSON with (question, answer) pairs.
    """
    numbers = range(max(1, count // CHUNK))
    tasks = [(str(tokenizer_path), longest, seed, number, str(chats)) for number in numbers]
    return Weighted.joined(list(pool.map(_chunk, tasks)))
