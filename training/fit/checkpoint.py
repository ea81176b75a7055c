"""What a run needs to go on bit for bit, in files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from training.common.atomic_files import sync_folder

KEPT = 2


class Checkpoints:
    """Files `step-N.pt` of a folder; the newest are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps, then remove all but the newest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.pt"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(self.folder)
        for old in self._files()[:-KEPT]:
            old.unlink()

    def newest(self, device: torch.device) -> dict[str, Any] | None:
        """The state of the latest step, its tensors on `device`."""
        files = self._files()
        if not files:
            return None
        state: dict[str, Any] = torch.load(files[-1], map_location=device, weights_only=True)
        return state

    def clear(self) -> None:
        """Remove all."""
        for path in (*self._files(), *self.folder.glob("*.part")):
            path.unlink()
