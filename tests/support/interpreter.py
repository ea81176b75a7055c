"""Triton's interpreter without what it does again at every call of a device function.

A launch replaces the members of `triton.language` by those of the interpreter, and puts them back at its end. The
interpreter looks all of them up once more whenever a kernel calls another function, which takes a quarter of its time
and finds nothing left to replace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class _Launch:
    """Which of the language's modules have been replaced since the launch under way began."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace
        self._done: set[int] = set()
        self._visible: dict[int, frozenset[int]] = {}

    def __call__(self, function: Any) -> Any:
        names = function.__globals__
        visible = self._visible.get(id(names))
        if visible is None:
            modules = (value for value in names.values() if inspect.ismodule(value))
            visible = self._visible[id(names)] = frozenset(id(each) for each in modules if each in (tl, tl.core))
        if self._done and visible <= self._done:
            return interpreter._LangPatchScope()
        outermost = not self._done
        scope = self._replace(function)
        self._done |= visible
        if outermost:
            restore = scope.restore

            def end() -> None:
                self._done.clear()
                restore()

            scope.restore = end
        return scope


def replace_once_a_launch() -> None:
    """From here on in this process; later calls do nothing."""
    if not isinstance(interpreter._patch_lang, _Launch):
        interpreter._patch_lang = _Launch(interpreter._patch_lang)
