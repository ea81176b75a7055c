"""The draft model as a proposer whose process crashes its GPU on demand.

    --proposer draft-model=support.faulting_kernel:create:FILE:DIR

As soon as FILE is there it is removed, and a kernel writes where it may not. Where there is no GPU the process gets
SIGSEGV instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from draft_service.proposers import draft_model
from draft_service.proposers.base import DraftRequest, Proposer, ProposerOptions
from slipstream_kernels.token_tree import TokenTree


def create(options: ProposerOptions) -> Proposer:
    """`options.argument` is FILE:DIR."""
    file, _, folder = options.argument.partition(":")
    trigger = Path(file)
    proposer = draft_model.create(replace(options, argument=folder))
    propose = proposer.propose

    def watched(requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        if trigger.exists():
            trigger.unlink()
            if not torch.cuda.is_available():
                os.kill(os.getpid(), signal.SIGSEGV)
            from support.illegal_access import access_illegally  # Triton is not everywhere

            access_illegally("cuda:0" if options.device == "cpu" else options.device)
        return propose(requests)

    proposer.propose = watched
    return proposer
