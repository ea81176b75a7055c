"""What EAGLE proposers share, wherever they compute: parameters, limits, and what they ask of the target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from draft_service.heads.eagle import EagleHead
from draft_service.proposers.base import Proposer, Target
from draft_service.proposers.checkpoint_folder import check_states, check_tokenizer, warm_up_with_states
from draft_service.proposers.round_costs import measure_rounds
from draft_service.proposers.tree_expansion import usual_rows
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import boundaries_of, usual_boundaries
from slipstream_kernels.token_tree import MAX_ROWS


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Limits, and what the checkpoint leaves open.

    max_depth, top_k, max_nodes: as SGLang's num_steps, topk and num_draft_tokens; max_nodes 0 stands for `usual_rows`.
    target: folder that lends embedding, scoring rows and tokenizer. boundaries: those to read, joined by dashes, in
    place of the checkpoint's. token_map: file of the target ids that a head scores which has no vocabulary of its own.
    chunk: rows of a pass over text; 0 stands for 128, on a GPU for 512. max_tokens: of all sessions together, as they
    open. A GPU makes room beforehand: for max_tokens, for max_sessions open at once, and for sessions of up to
    max_context tokens.
    """

    max_depth: int = 5
    top_k: int = 4
    max_nodes: int = 0
    target: str = ""
    boundaries: str = ""
    token_map: str = ""
    chunk: int = 0
    max_tokens: int = 262_144
    max_context: int = 16_384
    max_sessions: int = 128

    def __post_init__(self) -> None:
        if not (1 <= self.max_depth < MAX_ROWS and 1 <= self.top_k <= 16 and 2 <= self.rows <= MAX_ROWS):
            raise ValueError("max_depth must be 1 to 63, top_k 1 to 16, max_nodes 2 to 64")
        if not all(part.isdecimal() for part in self.boundaries.split("-") if self.boundaries):
            raise ValueError(f"boundaries are {self.boundaries!r}, must be numbers joined by dashes")
        if self.chunk < 0 or min(self.max_tokens, self.max_context - 1, self.max_sessions) < 1:
            raise ValueError("max_tokens and max_sessions must be at least 1, max_context 2, chunk 0")

    @property
    def rows(self) -> int:
        """Rows of the largest tree, the root included."""
        return self.max_nodes or usual_rows(self.max_depth, self.top_k)

    @property
    def target_folder(self) -> Path | None:
        return Path(self.target) if self.target else None

    @property
    def map_file(self) -> Path | None:
        return Path(self.token_map) if self.token_map else None


class EagleBase(Proposer):
    """A head's limits and boundaries. Subclasses hold its weights."""

    trained_on_states = True
    own_text_only = True

    def __init__(self, name: str, head: EagleHead, config: EagleConfig, tokenizer_fingerprint: str) -> None:
        self.name = name
        self.config = config
        self.max_nodes = config.rows
        self.max_depth = min(config.max_depth, config.rows - 1)
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.vocab_size = head.vocabulary.target_size
        self._family = head.family
        self._num_states = head.num_states
        self._target_hidden_size = head.config.target_hidden_size
        self._known_boundaries = head.config.boundaries

    def bind(self, target: Target) -> None:
        check_tokenizer(self.tokenizer_fingerprint, target)
        check_states(self._target_hidden_size, target)
        self.feature_boundaries = self._boundaries(target.num_layers)
        self.limit_vocabulary(target.vocab_size)
        self.warm_up()
        self.round_costs = measure_rounds(self, self._num_states * self._target_hidden_size)

    @abstractmethod
    def limit_vocabulary(self, size: int) -> None:
        """Never draft ids from `size` on: the target has no such tokens. Only while no session is open."""

    def warm_up(self) -> None:
        """Compile every kernel that a round uses. Only while no session is open."""
        warm_up_with_states(self, self._num_states * self._target_hidden_size)

    def _boundaries(self, num_layers: int) -> tuple[int, ...]:
        """Those that the operator or the checkpoint names, else those that the family reads by default."""
        if self.config.boundaries:
            chosen = tuple(int(part) for part in self.config.boundaries.split("-"))
        elif self._family == "eagle3" and self._known_boundaries:
            chosen = self._known_boundaries
        else:
            chosen = usual_boundaries(self._family, num_layers)
        known = boundaries_of(num_layers)
        if len(chosen) != self._num_states or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
            raise FailedPreconditionError(
                f"boundaries are {list(chosen)}; it reads {self._num_states} different ones of 0 to {known[-1]}: "
                "name them, as boundaries=2-4-5"
            )
        return chosen
