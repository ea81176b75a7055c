"""What proposers share whose weights lie in a folder: how it is named, and whether they fit the model served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions, Sampling, Target
from draft_service.proposers.options import Config, configured, expanded
from slipstream.model_folder import no_such_folder
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig


def folder_and_config(options: ProposerOptions, default: Config) -> tuple[Path, Config]:
    """The folder and the configuration of an argument `DIR[:KEY=VALUE...]`, keys as `options.configured` has them.

    Raises InvalidArgumentError where there is no such folder, and what `configured` raises.
    """
    argument, _, rest = options.argument.partition(":")
    if not argument:
        raise InvalidArgumentError(f"proposer {options.name} needs a folder: {options.name}:DIR", field="proposers")
    folder = expanded(argument, options)
    if not folder.is_dir():
        raise InvalidArgumentError(f"proposer {options.name}: {no_such_folder(argument)}", field="proposers")
    if options.top_k is not None:
        default = replace(default, top_k=options.top_k)  # type: ignore[type-var] # as in `configured`
    return folder, configured(default, replace(options, argument=rest))


@contextmanager
def refusing(options: ProposerOptions) -> Iterator[None]:
    """A CheckpointError within becomes an InvalidArgumentError that names the proposer."""
    try:
        yield
    except CheckpointError as error:
        raise InvalidArgumentError(f"proposer {options.name}: {error}", field="proposers") from error


class TargetFacts(NamedTuple):
    """Of the model that weights are for; nothing where its folder is not at hand."""

    tokenizer: str = ""
    eos_token_ids: Sequence[int] = ()


def target_facts(target: Path | None) -> TargetFacts:
    """Read from the target's folder. Raises CheckpointError."""
    if target is None:
        return TargetFacts()
    return TargetFacts(fingerprint(target).tokenizer, ModelConfig.from_folder(target).eos_token_ids)


def check_tokenizer(own: str, target: Target) -> None:
    """FailedPreconditionError where the fingerprint `own`, if there is one, is not the served model's."""
    if own and target.tokenizer_fingerprint != own:
        raise FailedPreconditionError(
            f"its tokenizer ({own[:12]}) is not the target's ({target.tokenizer_fingerprint[:12]})"
        )


def check_states(width: int, target: Target) -> None:
    """FailedPreconditionError where the served model's states are not `width` wide."""
    if target.hidden_size != width:
        raise FailedPreconditionError(f"it reads states of {width} numbers, the target's have {target.hidden_size}")


def warm_up_with_states(proposer: Proposer, width: int) -> None:
    """Compile every kernel that a round uses, plain and sampled, on a state of `width` numbers.

    Only while no session is open.
    """
    for sampling in (Sampling(temperature=0.0), Sampling(presence_penalty=1.0)):
        proposer.open(0, Opening([0, 0], 1, sampling=sampling))
        proposer.take_features(0, 0, torch.zeros(1, width, dtype=torch.bfloat16))
        proposer.propose([DraftRequest(0, proposer.max_nodes, proposer.max_depth)])
        proposer.close(0)
