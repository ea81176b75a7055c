"""A proposer whose process crashes its GPU on demand.

    --proposer NAME=support.faulting_kernel:create:FILE:FAMILY:ARGUMENT

Drafts as `FAMILY:ARGUMENT` does, `draft-model` or `eagle3`. As soon as FILE is there it is removed, and a kernel writes
where it may not. Where there is no GPU the process gets SIGSEGV instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TypeVar

import torch

from draft_service.proposers.base import DraftRequest, Proposer, ProposerOptions
from draft_service.proposers.draft_model import cpu
from draft_service.proposers.eagle import eagle3

FAMILIES = {"draft-model": cpu.create, "eagle3": eagle3.create}

T = TypeVar("T")


def create(options: ProposerOptions) -> Proposer:
    """`options.argument` is FILE:FAMILY:ARGUMENT."""
    file, family, argument = options.argument.split(":", 2)
    trigger = Path(file)
    proposer = FAMILIES[family](replace(options, argument=argument))

    def watched(draft: Callable[[Sequence[DraftRequest]], T]) -> Callable[[Sequence[DraftRequest]], T]:
        @wraps(draft)
        def fault_first(requests: Sequence[DraftRequest]) -> T:
            if trigger.exists():
                trigger.unlink(missing_ok=True)
                if not torch.cuda.is_available():
                    os.kill(os.getpid(), signal.SIGSEGV)
                from support.illegal_access import access_illegally  # Triton is not everywhere

                access_illegally("cuda:0" if options.device == "cpu" else options.device)
            return draft(requests)

        return fault_first

    proposer.propose = watched(proposer.propose)
    proposer.begin = watched(proposer.begin)
    return proposer
