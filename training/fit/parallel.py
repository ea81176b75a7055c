"""Processes that train one head together, each on its share of every step's rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class World:
    """This process among all. One alone needs no process group."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and tells of progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor, summed over processes in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over processes, all in one message, so that every process takes the same step."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        joined = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, joined.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def world(device: str = "") -> Iterator[World]:
    """The processes that torchrun started, or this one alone. device: empty for a GPU where there is one."""
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(f"cuda:{local}" if name == "cuda" else name)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, chosen)
    finally:
        dist.destroy_process_group()
