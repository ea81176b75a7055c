"""What client, gateway and verify service alike say of a generation: its speculation, its logprobs, how it went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class FinishReason(Enum):
    """Why an output ended; the values are OpenAI's words, and for the last two ours."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """What a request says about speculation; None and "" take the operator's default.

    `max_nodes` counts rows of a tree with its root, `max_depth` the longest path below it. `trace` asks for the trace
    of each verify step.
    """

    enabled: bool | None = None
    proposer: str = ""
    max_nodes: int | None = None
    max_depth: int | None = None
    trace: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its natural log-probability from the raw logits and its rank from 1, ties by lowest id."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The chosen token of a position and the most likely ones, by falling probability."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class SourceCount(NamedTuple):
    """Drafted tokens of trees of several proposers that are counted for one of them, and how many were accepted."""

    proposer: str
    drafted: int
    accepted: int


class TokenOrigin(Enum):
    """How an output token came: from a plain step, as a drafted token, or after the drafted ones of its step."""

    TARGET = "target"
    DRAFT = "draft"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What one verify step verified for a request; `slipstream.v1.StepTrace` says what each list holds.

    `token_ids` has None for a node that is withheld. `sources` names the proposer of each node where several made the
    tree. `node_texts` and `texts` are empty where no gateway has filled them in.
    """

    position: int
    token_ids: tuple[int | None, ...] = ()
    parents: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    accepted: tuple[int, ...] = ()
    pass_rows: int = 0
    pass_seconds: float = 0.0
    node_texts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationStep:
    """What one verify step did for a request; `proposer` is empty for a plain step.

    `drafted` counts the nodes verified, `accepted` how many of the tokens output by this step were drafted. `sources`
    shares both out where several proposers made the tree. `trace` is there where the request asks for it.
    """

    drafted: int
    accepted: int
    proposer: str
    sources: tuple[SourceCount, ...] = ()
    trace: StepTrace | None = None

    def origin(self, index: int) -> TokenOrigin:
        """How the step's output token of this index came."""
        if index < self.accepted:
            return TokenOrigin.DRAFT
        return TokenOrigin.BONUS if self.drafted else TokenOrigin.TARGET

    def proposer_of(self, node: int) -> str:
        """Who is counted for a node of the traced tree."""
        sources = self.trace.sources if self.trace is not None else ()
        return sources[node] if sources else self.proposer


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals of one output. What a service before this one output counts as completion, as it did when it was made."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    verify_steps: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens a verify step, the bonus token included; 0 without steps."""
        return self.completion_tokens / self.verify_steps if self.verify_steps else 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request's arrival: until first scheduled, until the first token, until the end.

    0 where it never came.
    """

    queued: float
    first_token: float
    total: float
