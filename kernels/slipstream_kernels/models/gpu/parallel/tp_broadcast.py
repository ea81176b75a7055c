"""What rank 0 tells the other ranks of a model before a pass: changes of lines and pages, and the pass's plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from slipstream_kernels.models.gpu.batch.pass_plan import CHOICE, Int32, PassPlan

_ARRAYS = tuple(field.name for field in fields(PassPlan) if field.type == "Int32")
_FLAGS = tuple(field.name for field in fields(PassPlan) if field.type == "bool")
_COLUMNS = dict.fromkeys(("deciding", "decodes", "prefills"), 4) | {
    "choices": CHOICE,
    "scored": 3,
}
_NONE = -1
assert {*_ARRAYS, *_FLAGS, "trees"} == {field.name for field in fields(PassPlan)}  # models of several ranks take none


@dataclass(frozen=True, slots=True)
class LineChange:
    """Arguments of `GpuModel.set_line`; arrays int32, but `bias_values` float32. None where the argument is."""

    line: int
    packed_params: Int32
    prompt_ids: Int32 | None
    output_ids: Int32 | None
    bias_ids: Int32 | None
    bias_values: np.ndarray[Any, np.dtype[np.float32]] | None
    end_ids: Int32 | None
    adapter: int


@dataclass(frozen=True, slots=True)
class PagesChange:
    """Arguments of `GpuModel.set_pages`."""

    line: int
    start: int
    pages: Int32


@dataclass(frozen=True, slots=True)
class StepMessage:
    """A value; as bytes it is int32 words in the machine's order, each array behind its length."""

    lines: tuple[LineChange, ...]
    pages: tuple[PagesChange, ...]
    plan: PassPlan

    def to_bytes(self) -> bytes:
        words = _Writer()
        words.number(len(self.lines))
        for line in self.lines:
            words.number(line.line)
            words.number(line.adapter)
            bias_values = None if line.bias_values is None else line.bias_values.view(np.int32)
            for array in (
                line.packed_params, line.prompt_ids, line.output_ids, line.bias_ids, bias_values, line.end_ids
            ):  # fmt: skip
                words.array(array)
        words.number(len(self.pages))
        for change in self.pages:
            words.number(change.line)
            words.number(change.start)
            words.array(change.pages)
        for name in _ARRAYS:
            words.array(getattr(self.plan, name))
        for name in _FLAGS:
            words.number(getattr(self.plan, name))
        return words.content()

    @classmethod
    def from_bytes(cls, content: bytes) -> StepMessage:
        words = _Reader(content)
        lines = tuple(_line(words) for _ in range(words.number()))
        pages = tuple(PagesChange(words.number(), words.number(), words.wanted_array()) for _ in range(words.number()))
        plan: dict[str, Any] = {name: words.wanted_array() for name in _ARRAYS}
        plan |= {name: plan[name].reshape(-1, columns) for name, columns in _COLUMNS.items()}
        plan |= {name: bool(words.number()) for name in _FLAGS}
        words.end()
        return cls(lines, pages, PassPlan(**plan))


def _line(words: _Reader) -> LineChange:
    line, adapter = words.number(), words.number()
    params, prompt_ids, output_ids, bias_ids = words.wanted_array(), words.array(), words.array(), words.array()
    bias_values = words.array()
    values = None if bias_values is None else bias_values.view(np.float32)
    return LineChange(line, params, prompt_ids, output_ids, bias_ids, values, words.array(), adapter)


class _Writer:
    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, value: int) -> None:
        self._parts.append(np.int32(value).tobytes())

    def array(self, values: Int32 | None) -> None:
        self.number(_NONE if values is None else values.size)
        if values is not None:
            assert values.dtype == np.int32
            self._parts.append(values.tobytes())

    def content(self) -> bytes:
        return b"".join(self._parts)


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._words = np.frombuffer(content, np.int32)
        self._at = 0

    def number(self) -> int:
        self._at += 1
        return int(self._words[self._at - 1])

    def array(self) -> Int32 | None:
        size = self.number()
        if size == _NONE:
            return None
        self._at += size
        return self._words[self._at - size : self._at]

    def wanted_array(self) -> Int32:
        values = self.array()
        assert values is not None
        return values

    def end(self) -> None:
        assert self._at == len(self._words)


def ids(values: Iterable[int] | None) -> Int32 | None:
    """Token ids as the messages carry them."""
    return None if values is None else np.fromiter(values, np.int32)
