"""Texts and token ids through the tokenizer, the detokenizers, stop strings and chat templates."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

from fuzz.raw_bytes import joined, parted
from fuzz.target import BrokenError, Target
from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.tokens.detokenizer import Detokenizer, WindowDetokenizer
from gateway.tokens.stop_strings import StopStrings
from gateway.tokens.stream import ChoiceStream
from gateway.tokens.tokenizer import Tokenizer
from slipstream.chat_template import ChatTemplate
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError
from support.models import CHAT_TEMPLATE, EOS_ID, SPECIAL_TOKENS, write_tokenizer

_IDS, _TEXT, _STOPS, _STREAM, _CHAT = range(5)
_SCRAPS = (
    "a", "b", "ab", "aab", " ", "\n", "\0", "é", "e\u0301", "東", "\U0001f600", "\u200d", "\ufffd", "\ud7ff",
    "\u2581", "<|end|>", "<|", "Hello world!", "def add(a, b):", "x" * 300, "{{ 1 }}", "{% raw %}",
    "\r\n", "\x85", "\u2028", "<0x0A>", "</s>",
    "\ufeff",
)  # fmt: skip
_TEMPLATES = (
    CHAT_TEMPLATE,
    "{% for m in messages %}{{ m.role | title }}: {{ m['content'] | trim }}\n{% endfor %}",
    "{{ messages[0]['content'].split('</think>')[-1] }}{{ messages[0].content[(messages | length) * 2] }}",
    (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'][:10] ~ m.name }}{% endfor %}"
    ),
    "{% for m in messages %}{{ '[INST] %s [/INST]' % m['content'] }}{{ m | tojson }}{% endfor %}",
    "{{ messages[1].content.encode('utf-8') }}{{ messages[0].content.format(1) }}{{ messages[0].content | int + 1 }}",
)


class Texts(Target):
    """Text that is streamed is that of all tokens at once; stop strings cut where a plain search does."""

    name: ClassVar[str] = "texts"
    share: ClassVar[int] = 120

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        write_tokenizer(folder, vocab_size=512, max_context=512)
        self._tokenizer = Tokenizer(folder)
        self._pieces = _pieces()
        tokens = {"bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2]}
        self._templates = [ChatTemplate(source, tokens) for source in _TEMPLATES]

    def make(self, random: Random) -> bytes:
        kind = random.randrange(5)
        if kind == _IDS:
            count = int(random.expovariate(0.05))
            ids = [random.choice((random.randrange(512), 128 + random.randrange(128), 260)) for _ in range(count)]
            return joined([bytes([kind]), struct.pack(f"<{count}H", *ids)])
        texts = [_text(random).encode() for _ in range(random.choice((1, 2, 4)))]
        if kind in (_STOPS, _STREAM):
            stops = [_stop(random).encode() for _ in range(random.choice((1, 1, 2, 3, 16)))]
            return joined([bytes([kind, len(stops), random.randrange(4)]), *stops, *texts])
        return joined([bytes([kind, random.randrange(8)]), *texts])

    def check(self, data: bytes) -> None:
        first, *rest = parted(data) or [b""]
        kind, second, third = [*first[:3], 0, 0, 0][:3]
        texts = [part.decode("utf-8", "replace") for part in rest]
        match kind % 5:
            case 0:
                ids = [number for (number,) in struct.iter_unpack("<H", b"".join(rest)[: sum(map(len, rest)) // 2 * 2])]
                self._check_ids(ids)
            case 1:
                self._check_text("".join(texts))
            case 2:
                _check_stops(texts[:second] or ["a"], texts[second:])
            case 3:
                self._check_stream([text for text in texts[:second] if text], "".join(texts[second:]), third)
            case _:
                self._check_chat(self._templates[second % len(self._templates)], texts)

    def _check_ids(self, ids: list[int]) -> None:
        if (streamed := _streamed(self._tokenizer.detokenizer(), ids)) != (whole := self._tokenizer.decode(ids)):
            raise BrokenError(f"streamed {streamed!r}, at once {whole!r}")
        pieces = [token for token in ids if token < self._pieces.get_vocab_size()]
        _streamed(WindowDetokenizer(self._pieces, frozenset()), pieces)  # what is ill-formed may be cut otherwise

    def _check_text(self, text: str) -> None:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if len(ids) < self._tokenizer.fewest_tokens(text):
            raise BrokenError(f"{len(ids)} tokens, at least {self._tokenizer.fewest_tokens(text)} were to be")
        if b"".join(map(self._tokenizer.token_bytes, ids)) != text.encode():
            raise BrokenError(f"{text!r} became {ids}")
        self._check_ids(ids)
        pieces = self._pieces.encode(text[:60]).ids
        whole = self._pieces.decode(pieces)
        if (streamed := _streamed(WindowDetokenizer(self._pieces, frozenset()), pieces)) != whole:
            raise BrokenError(f"pieces streamed {streamed!r}, at once {whole!r}")

    def _check_stream(self, stops: list[str], text: str, cut: int) -> None:
        """An output in one step and token by token."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        order = ChoiceRequest(prompt_token_ids=[5], sampling=Sampling(min_tokens=cut), stop=tuple(stops))
        results = []
        for size in (max(1, len(ids)), 1 + cut, 1):
            stream = ChoiceStream(0, order, self._tokenizer, frozenset({EOS_ID}))
            shown, told = "", []
            steps = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
            for index, step in enumerate(steps):
                reason = FinishReason.LENGTH if index == len(steps) - 1 else None
                delta = stream.feed(StepOutput(step, finish_reason=reason))
                shown += delta.text
                told += delta.token_ids
                if stream.finished:
                    break
            results.append((shown, told, stream.finish_reason, stream.usage.completion_tokens))
        if results[1:] != results[:-1]:
            raise BrokenError(f"by the size of its steps: {results}")
        if any(stop in results[0][0] for stop in stops) and cut == 0:
            raise BrokenError(f"a stop string is shown: {results[0]}")

    def _check_chat(self, template: ChatTemplate, texts: Sequence[str]) -> None:
        roles = ("user", "assistant", "system", "tool")
        messages = [{"role": roles[index % 4], "content": text} for index, text in enumerate(texts)]
        try:
            self._check_text(template.render(messages))
        except InvalidArgumentError:
            return


def _check_stops(stops: Sequence[str], parts: Sequence[str]) -> None:
    found = StopStrings([stop for stop in stops if stop] or ["a"])
    patterns, text = [stop for stop in stops if stop] or ["a"], "".join(parts)
    shown = ""
    for part in parts:
        shown += found.push(part)
        if found.matched is not None:
            break
    else:
        shown += found.flush()
    expected = _searched(patterns, text)
    if (shown, found.matched) != expected:
        raise BrokenError(f"{shown!r} up to {found.matched!r}, expected {expected}")


def _searched(patterns: Sequence[str], text: str) -> tuple[str, str | None]:
    """The text before the first pattern to end, of several that end there the longest, and the pattern."""
    ends = [(at + len(pattern), -len(pattern), pattern) for pattern in patterns if (at := text.find(pattern)) >= 0]
    if not ends:
        return text, None
    end, size, pattern = min(ends)
    return text[: end + size], pattern


def _streamed(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join([*map(detokenizer.step, ids), detokenizer.flush()])


def _text(random: Random) -> str:
    scraps = [random.choice(_SCRAPS) for _ in range(int(random.expovariate(0.2)))]
    scraps += [
        chr(random.choice((random.randrange(0xD800), random.randrange(0xE000, 0x11000))))
        for _ in range(random.randrange(3))
    ]
    random.shuffle(scraps)
    return "".join(scraps)


def _stop(random: Random) -> str:
    return "".join(random.choice(("a", "b", "a", "é", "東", "ab", "aab", " ")) for _ in range(1 + random.randrange(4)))


def _pieces() -> HfTokenizer:
    """As SentencePiece tokenizers with byte fallback are written: pieces with U+2581 for spaces, and bytes."""
    words = ["\u2581Hello", "\u2581world", "\u2581", "!", "ö", "ab"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {w: 256 + i for i, w in enumerate(words)}
    tokenizer = HfTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer
