"""A stream as the place where what follows is queued."""

from __future__ import annotations

import torch


class OnStream:
    """A context as `torch.cuda.stream` makes them, made once: entering a new one takes longer than queueing a copy.

    One thread at a time may use it, and not within itself.
    """

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._before: list[torch.cuda.Stream] = []

    def __enter__(self) -> None:
        """Make the stream, and its device, the thread's current ones."""
        current = torch.cuda.current_stream()
        if current.device_index != self._stream.device_index:
            self._before.append(current)
            current = torch.cuda.current_stream(self._stream.device_index)
        self._before.append(current)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        """Go back to what was current."""
        while self._before:
            torch.cuda.set_stream(self._before.pop())
