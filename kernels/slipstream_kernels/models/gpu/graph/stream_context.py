"""A stream as the place where what follows is queued."""

from __future__ import annotations

import torch


class StreamContext:
    """A context as `torch.cuda.stream` makes them, made once: entering a new one takes longer than queueing a copy.

    One thread at a time may use it, and not within itself. Streams are kept as (id, device, type), as torch's own
    functions below `torch.cuda` name them: to make an object of each takes most of the time.
    """

    __slots__ = ("_before", "_current_device", "_current_stream", "_set_stream", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = (stream.stream_id, stream.device_index, stream.device_type)
        self._before: list[tuple[int, int, int]] = []
        self._current_device = torch._C._cuda_getDevice  # noqa: SLF001 - the public form makes objects
        self._current_stream = torch._C._cuda_getCurrentStream  # noqa: SLF001 - the public form makes objects
        self._set_stream = torch._C._cuda_setStream  # noqa: SLF001 - the public form takes objects

    def __enter__(self) -> None:
        """Make the stream, and its device, the thread's current ones."""
        device, (number, own, kind) = self._current_device(), self._stream
        if device != own:
            self._before.append(self._current_stream(device))
        self._before.append(self._current_stream(own))
        self._set_stream(stream_id=number, device_index=own, device_type=kind)

    def __exit__(self, *_: object) -> None:
        """Go back to what was current."""
        while self._before:
            number, device, kind = self._before.pop()
            self._set_stream(stream_id=number, device_index=device, device_type=kind)
