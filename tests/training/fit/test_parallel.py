"""Processes that share a run's rows learn what one alone learns."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from launcher.services.free_ports import free_ports
from support.fit_sources import InMemory, answered, small_target
from training.fit.parallel import World, world
from training.fit.run import fit
from training.fit.settings import FitSettings, RunOptions

SETTINGS = FitSettings(unroll=2, draft_vocab=64, row_length=40, batch_rows=4, micro_rows=1, max_steps=3, epochs=9)
QUIET = RunOptions(log_every=1, checkpoint_every=2, progress=False)


def join(rank: int, port: int, source: InMemory, folder: Path) -> dict:
    """Train as one process of two."""
    places = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in places.items()}
    try:
        with world("cpu") as group:
            return fit(source, folder, SETTINGS, QUIET, group, heldout=source)
    finally:
        for name in places:
            del os.environ[name]


def test_two_processes_equal_one(tmp_path: Path) -> None:
    model = small_target(tmp_path / "target")
    texts = [answered(model, number, prompt=5 + number % 7, answer=10) for number in range(12)]
    source = InMemory(tmp_path / "target", texts)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    with world("cpu") as group:
        assert group == World(0, 1, torch.device("cpu"))
        expected = fit(source, alone, SETTINGS, QUIET, group, heldout=source)
    (port,) = free_ports(1)
    other = mp.get_context("spawn").Process(target=join, args=(1, port, source, shared))
    other.start()
    got = join(0, port, source, shared)
    other.join(60)
    assert other.exitcode == 0
    assert got["heldout"]["loss_by_step"] == pytest.approx(expected["heldout"]["loss_by_step"], rel=1e-3)
    for mine, theirs in zip(*(lines(folder) for folder in (alone, shared)), strict=True):
        for name in ("loss", "loss_by_step", "accuracy_by_step", "acceptance_length"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-3)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
