"""A round of drafting under way, and the trees that come of it."""

from __future__ import annotations

from threading import Lock
from time import perf_counter, sleep

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.draft.round.tree_words import trees_of
from slipstream_kernels.token_tree import TokenTree


class DraftHandle:
    """A round under way. Of one that follows a pass, the trees are `DeviceTrees` too. Any thread may wait for them."""

    __slots__ = ("_done", "_lock", "_on_device", "_trees", "_words", "states_read")

    def __init__(
        self,
        words: npt.NDArray[np.int32],
        done: torch.cuda.Event | None,
        states_read: torch.cuda.Event | None = None,
        on_device: torch.Tensor | None = None,
    ) -> None:
        """words: int32 [sessions, TREE_WIDTH], the trees once `done` has come; None where they are there.

        states_read: of a round that follows a pass on a GPU, comes once it has read the pass's results and states.
        on_device: int32 [any, TREE_WIDTH], the trees there, once `done` has come, until another such round.
        """
        self._words = words
        self._done = done
        self.states_read = states_read
        self._on_device = on_device
        self._trees: list[TokenTree] | None = None
        self._lock = Lock()

    def wait(self, seconds: float) -> bool:
        """Whether `trees` would not wait, after so many seconds at most."""
        done = self._done
        if self._trees is not None or done is None or done.query():
            return True
        until = perf_counter() + seconds
        while perf_counter() < until:
            sleep(0)  # lets other threads have the interpreter
            if done.query():
                return True
        return self._trees is not None  # read by another thread, after which the event is that of another round

    def trees(self) -> list[TokenTree]:
        """A tree a session; waits for them. To be called, first, before what they lie in is used again."""
        with self._lock:
            if self._trees is None:
                if self._done is not None:
                    self._done.synchronize()
                self._trees = trees_of(self._words)
            return self._trees

    def queue(self) -> torch.Tensor:
        """See `DeviceTrees`."""
        assert self._on_device is not None
        if self._done is not None:
            torch.cuda.current_stream(self._on_device.device).wait_event(self._done)
        return self._on_device

    def read(self, row: int) -> TokenTree:
        """See `DeviceTrees`."""
        return self.trees()[row]
