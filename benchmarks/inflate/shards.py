"""Weights as files of a Hugging Face folder, written while the next ones are made."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tqdm import tqdm

SHARD_BYTES = 4 << 30
WRITERS = 4
"""Files that are written at once: what is held in memory, on the device and beside it, is one more of them."""
INDEX = "model.safetensors.index.json"

Tensors = Iterable[tuple[str, torch.Tensor]]


class NoRoomError(ValueError):
    """A disk has less room than weights take; the message has the figures."""


def check_room(folder: Path, needed: int) -> None:
    """Raise NoRoomError unless `needed` bytes fit on the disk of a folder, whose own weights are overwritten."""
    held = sum(path.stat().st_blocks * 512 for path in folder.glob("model-*.safetensors"))
    free = shutil.disk_usage(folder).free + held
    if needed > free:
        raise NoRoomError(f"{folder}: the weights take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def write_weights(tensors: Tensors, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Files of about `shard_bytes` each, and their index. A tensor is neither split nor kept once its file is there.

    Tensors may lie on any device, and are not changed afterwards.
    """
    total, held = 0, 0
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    running: deque[Future[None]] = deque()
    with (
        ThreadPoolExecutor(WRITERS, thread_name_prefix="shards") as pool,
        tqdm(desc=str(folder), unit="B", unit_scale=True) as bar,
    ):

        def save() -> None:
            nonlocal shard, held
            if len(running) == WRITERS:
                running.popleft().result()
            file = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
            weight_map.update(dict.fromkeys(shard, file))
            if (device := _device_of(shard)) is not None:
                torch.cuda.synchronize(device)  # writers copy on streams of their own
            running.append(pool.submit(_save, shard, folder / file))
            shard, held = {}, 0

        for name, tensor in tensors:
            shard[name] = tensor
            total, held = total + tensor.nbytes, held + tensor.nbytes
            bar.update(tensor.nbytes)
            if held >= shard_bytes:
                save()
        if shard:
            save()
        for each in running:
            each.result()
    content = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _device_of(shard: dict[str, torch.Tensor]) -> torch.device | None:
    """The GPU that tensors lie on; None: the host's memory."""
    return next((tensor.device for tensor in shard.values() if tensor.is_cuda), None)


def _save(shard: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file; the tensors on a device are let go one by one. Raises OSError."""
    if (device := _device_of(shard)) is None:
        on_host = {name: tensor.contiguous() for name, tensor in shard.items()}
    else:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            on_host = {name: shard.pop(name).cpu().contiguous() for name in list(shard)}
    try:
        save_file(on_host, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
