"""What tells one target, and one set of features, from another."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.weight_loader import weight_files
from training.common.atomic_files import sha256_of
from training.features.settings import Machine
from training.features.texts import Texts


def identity_of(model: Path) -> dict[str, str]:
    """Of a folder, wherever it is: its fingerprint as services compare it, and the hash of all its weights.

    Reads all weights. Raises CheckpointError.
    """
    files = weight_files(model)
    digest = hashlib.sha256()
    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as pool:
        for path, sha256 in zip(files, pool.map(sha256_of, files), strict=True):
            digest.update(f"{path.name} {sha256}\n".encode())
    return {"fingerprint": fingerprint(model).model, "weights_sha256": digest.hexdigest()}


def facts_of(model: Path, boundaries: tuple[int, ...], machine: Machine, texts: Texts) -> dict[str, Any]:
    """What decides all states. Reads all weights."""
    return {
        "model": identity_of(model),
        "boundaries": list(boundaries),
        "device": device_name(machine),
        "texts": texts.digest(),
    }


def fingerprint_of(facts: dict[str, Any]) -> str:
    """Of a set of features with these `facts_of` it: equal ones hold the same states of the same sequences."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def device_name(machine: Machine) -> str:
    """What computes the states: bits are equal on one kind of device."""
    if machine.on_cpu:
        return "cpu"
    import torch

    return torch.cuda.get_device_name(machine.device) if torch.cuda.is_available() else machine.device
