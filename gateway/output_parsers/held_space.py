"""White space that waits for the text behind it."""

from __future__ import annotations

from typing import Final

from gateway.output_parsers.parts import WHITESPACE

_HELD: Final = WHITESPACE + ",;"


class HeldSpace:
    """Pieces of nothing but white space and separators, which decide nothing.

    A parser that waits for more text need not read what it has again for each of them. As its parts do not depend on
    how the text is cut, it may take them together with the text that follows.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def hold(self, text: str) -> bool:
        """Hold `text` back if it is of this kind, and say whether it is."""
        if text.strip(_HELD):
            return False
        self._pieces.append(text)
        return True

    def take(self) -> str:
        """What is held back, which from then on is not."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text
