"""Weights that are read to their device beside what needs no more than their places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import iterate_weights
from slipstream_kernels.models.gpu.forward.staged_copies import StagedCopies
from slipstream_kernels.models.gpu.forward.weight_places import AnyTensor, plain_copy
from slipstream_kernels.models.gpu.forward.weights import GpuWeights


class WeightReader:
    """Reads a Hugging Face folder on a thread of its own; leaving the context stops that.

    Quantised weights and those of experts are read at once: what they are made in is given back before other memory is
    taken.
    """

    def __init__(
        self, folder: Path, config: ModelConfig, device: torch.device | str, *, rank: int, size: int, progress: bool
    ) -> None:
        """Raises what `GpuWeights.load` does, for weights that are read at once."""
        self._folder = folder
        self._progress = progress
        self._stopped = threading.Event()
        self._failures: list[BaseException] = []
        self._thread: threading.Thread | None = None
        if config.quantisation is not None or config.form.experts is not None:
            self.weights = GpuWeights.load(folder, config, device, rank=rank, size=size, progress=progress)
            return
        self.weights = GpuWeights.laid_out(folder, config, device, rank=rank, size=size)
        """Where they are once `wait` has returned."""
        self._thread = threading.Thread(target=self._read, name="weights", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Return when all weights are there; raises CheckpointError as `GpuWeights.load`."""
        if self._thread is None:
            return
        self._thread.join()
        if self._failures:
            raise self._failures[0]

    def _read(self) -> None:
        device = self.weights.embedding.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                copy = StagedCopies(device).copy if device.type == "cuda" else plain_copy
                self.weights.fill(self._tensors(device), "loading weights", progress=self._progress, copy=copy)
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
                    torch.cuda.empty_cache()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failures.append(error)

    def _tensors(self, device: torch.device) -> Iterator[tuple[str, AnyTensor]]:
        for named in iterate_weights(self._folder, self.weights.shard.config, device=device):
            if self._stopped.is_set():
                return
            yield named
