"""What draft-model proposers share, wherever they compute: parameters, limits, and whether they fit the target."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draft_service.proposers.base import DraftRequest, Opening, Proposer, Sampling, SessionRefusedError, Target
from draft_service.proposers.checkpoint_folder import check_tokenizer
from draft_service.proposers.round_costs import measure_rounds
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.checkpoint.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DraftModelConfig:
    """Limits and sizes, and which tokens are scored.

    top_k: children a node gets, and nodes expanded a level; 1 makes chains. max_nodes: rows of the tree, root included;
    0: as many as a chain has. token_map: file of the only token ids that are scored. chunk: rows of one prefill pass; 0
    stands for 128, on a GPU for 512. max_cached_tokens and max_cached_bytes: size of all pages; one context always
    fits. page_size and group, the sessions drafted in one pass, are for the CPU. A GPU makes room beforehand: for
    max_sessions open at once, and for sessions of up to max_context tokens, where the model's context is longer.
    """

    max_depth: int = 4
    top_k: int = 3
    max_nodes: int = 0
    token_map: str = ""
    page_size: int = 16
    max_cached_tokens: int = 65_536
    max_cached_bytes: int = 1 << 30
    chunk: int = 0
    group: int = 32
    max_context: int = 16_384
    max_sessions: int = 128

    def __post_init__(self) -> None:
        if not (1 <= self.max_depth <= 63 and 1 <= self.top_k <= 16 and 2 <= self.rows <= 64):
            raise ValueError("max_depth must be 1 to 63, top_k 1 to 16, max_nodes 2 to 64")
        if min(self.page_size, self.max_cached_tokens, self.max_cached_bytes, self.group) < 1:
            raise ValueError("page_size, max_cached_tokens, max_cached_bytes and group must be at least 1")
        if self.chunk < 0 or self.max_context < 2 or self.max_sessions < 1:
            raise ValueError("max_sessions must be at least 1, max_context 2, chunk 0")

    @property
    def rows(self) -> int:
        """Rows of the largest tree, the root included."""
        return self.max_nodes or self.max_depth + 1

    @property
    def map_file(self) -> Path | None:
        return Path(self.token_map) if self.token_map else None

    @property
    def scratch_slots(self) -> int:
        """Slots for the nodes that one group expands in one round; the last level is never expanded."""
        return max(1, self.group * self.top_k * (self.max_depth - 1))


class DraftModelBase(Proposer):
    """A causal language model's limits. Subclasses hold its weights."""

    own_text_only = True

    def __init__(
        self,
        name: str,
        model: ModelConfig,
        config: DraftModelConfig,
        tokenizer_fingerprint: str,
        max_context: int,
        scored: torch.Tensor | None,
    ) -> None:
        """max_context: the longest session that gets trees. scored: int64, the ids that are scored; None: all."""
        self.name = name
        self.config = config
        self.max_depth = min(config.max_depth, config.rows - 1)
        self.max_nodes = config.rows
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.vocab_size = model.vocab_size
        self._max_context = max_context
        self._scored = scored

    def bind(self, target: Target) -> None:
        check_tokenizer(self.tokenizer_fingerprint, target)
        if not self._entries_below(target.vocab_size):
            raise FailedPreconditionError(f"its token map holds none of the target's {target.vocab_size} tokens")
        self.limit_vocabulary(target.vocab_size)
        self.warm_up()
        self.round_costs = measure_rounds(self)

    @abstractmethod
    def limit_vocabulary(self, size: int) -> None:
        """Never propose ids from `size` on. Only while no session is open."""

    def _entries_below(self, size: int) -> int:
        """How many ids below `size` are scored."""
        return min(size, self.vocab_size) if self._scored is None else int((self._scored < size).sum())

    def warm_up(self) -> None:
        """Compile every kernel that a round uses, plain and sampled. Only while no session is open."""
        for sampling in (Sampling(temperature=0.0), Sampling(presence_penalty=1.0)):
            self.open(0, Opening([0], 1, sampling=sampling))
            self.propose([DraftRequest(0, self.max_nodes, self.max_depth)])
            self.close(0)

    def _check_opening(self, tokens: Sequence[int]) -> None:
        """Raises SessionRefusedError for tokens that the model cannot read."""
        if len(tokens) > self._max_context:
            raise SessionRefusedError(f"{len(tokens)} tokens, the draft model's context is {self._max_context}")
        if max(tokens) >= self.vocab_size:
            raise SessionRefusedError(f"token {max(tokens)} is outside the draft model's vocabulary")

    def _check_commit(self, token_ids: Sequence[int]) -> None:
        """Raises ValueError likewise."""
        if max(token_ids) >= self.vocab_size:
            raise ValueError(f"token {max(token_ids)} is outside the draft model's vocabulary")
