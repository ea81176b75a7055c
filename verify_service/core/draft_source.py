"""Where drafted trees come from and hidden states go, as the verify loop sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream.generation_types import FinishReason
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.core.step_result import DeviceStepResult
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RequestOpening:
    """A request that begins to run. No tree is wanted yet; the first `Committed` asks for one.

    `token_ids` is prompt and prior output, `prompt_length` of them the prompt, `cached_length` of them a
    prefix-cache hit. `sampling.seed` is the seed in force. `request_id` names the request in logs.
    """

    key: RequestKey
    proposer: str
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: SamplingParams
    choice_index: int
    tenant: str
    adapter_id: str
    cached_length: int
    history: HiddenStateHistory | None = None
    """Hidden states of the request's positions, for the loop's thread; None where none are kept."""
    request_id: str = ""


class WaitUrgency(Enum):
    """Whom a long wait for trees would hold up."""

    HURRIED = 1
    """Requests of the step that want no tree."""
    WEIGHED = 2
    """Only such as want one, some of them if that makes them quicker."""
    INSISTENT = 3
    """Only such as insist on one."""


class Committed(NamedTuple):
    """Tokens that a verify step added to a request, which now has `total_length` of them, prompt included.

    The last one is the root of the next tree. `max_nodes` counts the root, so that 1 asks for no tree;
    `max_depth` is the longest path below the root that could still be output. `features` are the states that predicted
    the tokens, those of positions total_length - len(token_ids) - 1 onwards; None where none were captured.

    `catch_up`: states of older tokens that its drafter lacks are to be sent, although no tree is wanted now.
    `haste` is that of the next step, as far as it is known. `verified`: the trees that these steps verified. `handed`:
    the next step was launched with the tree that was promised behind the one which added the tokens. `behind`: the next
    step does not wait for a tree, so that a drafter on the device is to draft behind that step alone.
    """

    key: RequestKey
    token_ids: tuple[int, ...]
    total_length: int
    max_nodes: int
    max_depth: int
    features: HiddenStateRows | None = None
    catch_up: bool = False
    haste: WaitUrgency = WaitUrgency.HURRIED
    verified: Sequence[VerifiedTree] = ()
    handed: bool = False
    behind: bool = False


class StateChunk(NamedTuple):
    """States of tokens that a request had before, such as a chunk of its prompt."""

    key: RequestKey
    features: HiddenStateRows


class StateSpan(NamedTuple):
    """A request whose states a step computes: of `length` positions from `first` on, at most."""

    key: RequestKey
    first: int
    length: int


ReadEvents = Sequence["torch.cuda.Event"]
"""Once all have come, nothing of an outcome is read any more."""


class EnqueuedDrafts(NamedTuple):
    """What is drafted behind a step: trees for whichever state that leads to, good for the next step alone."""

    read: ReadEvents = ()
    trees: Mapping[RequestKey, DeviceTree] = MappingProxyType({})


class EnqueuedRequest(NamedTuple):
    """A request that a step decides, which adds `most` tokens at most: its row of the results, where its states go."""

    key: RequestKey
    row: int
    most: int
    spans: Sequence[RingSlice]


class DraftSource(Protocol):
    """A supplier of token trees, as far as the verify loop knows. `NoDrafts` has each method's neutral answer.

    The loop's thread alone calls every method but `known` and `default`. Only `collect` may
    wait. No method should raise; the loop meets a source behind `GuardedSource`, which gives the neutral answer then.
    """

    # --- Trees for the step that is launched next

    def known(self, name: str) -> bool:
        """Return whether a proposer of this name is configured or attached. Thread-safe."""
        ...

    def default(self) -> str | None:
        """Return the operator's default proposer; None for no speculation. Thread-safe."""
        ...

    def begin(self, opening: RequestOpening) -> bool:
        """Take in a request that starts with a proposer; return whether it is drafted for at all.

        Called once a request; preemption is not seen here.
        """
        ...

    def round_costs(self, proposer: str) -> Sequence[RoundCost]:
        """Return what rounds of a proposer take by its drafter's own word, positive and finite; () where not known."""
        ...

    def most_levels(self, proposer: str) -> int:
        """Return how deep a proposer's deepest tree is; 0 where no drafter offers it."""
        ...

    def accepts_commits(self) -> bool:
        """Return whether any drafter takes in commits now.

        Otherwise the loop may leave the commit out; a request's next commit then holds all its unsent tokens.
        """
        ...

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        """Take in what verify steps added to requests that go on, in arrival order; of some perhaps several steps.

        Return those whose drafter lacks states of older tokens, so that it makes no tree now.
        """
        ...

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """Return trees for these requests, in their order; None where there is none. May wait to its own deadline.

        A tree fits the last `Committed` of its request: it hangs under that root, has fewer than `max_nodes`
        nodes, no path longer than `max_depth`, and ids within the vocabulary.
        """
        ...

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        """Return whether any of these requests, which began, would be waited for if it asked for a tree next."""
        ...

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        """Let go of a request that began, whatever the reason; `verified` since its last `Committed`, as there."""
        ...

    # --- Trees that a device drafts behind a step under way

    def drafts_on_device(self) -> bool:
        """Return whether any drafter may draft on the device behind a step under way."""
        ...

    def drafts_behind(self, keys: Sequence[RequestKey]) -> bool:
        """Return whether the drafters of all these requests would draft behind the next step, as far as is known."""
        ...

    def enqueue_draft(self, rows: Sequence[EnqueuedRequest], outcome: DeviceStepResult) -> EnqueuedDrafts:
        """Enqueue drafting behind a step. Call after the step's launch, once `commit` told of the one before it."""
        ...

    def allow_device_trees(self, allowed: bool) -> None:
        """Set whether `collect` may return `DeviceTree`s, whose nodes only the device knows."""
        ...

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        """Take in the seconds that a step waited, after its launch, for device trees of these requests."""
        ...

    # --- Hidden states for drafters that read them

    def paused(self) -> bool:
        """Return whether no drafter takes hidden states in now."""
        ...

    def wanted_boundaries(self) -> tuple[int, ...]:
        """Return the boundaries to be captured by steps launched from now on, ascending; see `capture_layers`."""
        ...

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        """Reserve ring slots on the device for the states of each of `wanted` that a step captures; () for none."""
        ...

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        """Send states that one step computed beside those in `Committed`. Call before that step's `commit`."""
        ...


class NoDrafts:
    """The draft source of a service without drafters: the neutral answer of each method. Base of partial sources."""

    def known(self, name: str) -> bool:
        return False

    def default(self) -> str | None:
        return None

    def begin(self, opening: RequestOpening) -> bool:
        return False

    def round_costs(self, proposer: str) -> Sequence[RoundCost]:
        return ()

    def most_levels(self, proposer: str) -> int:
        return 0

    def accepts_commits(self) -> bool:
        return True

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        return ()

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return [None] * len(wanted)

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return False

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        return None

    def drafts_on_device(self) -> bool:
        return False

    def drafts_behind(self, keys: Sequence[RequestKey]) -> bool:
        return False

    def enqueue_draft(self, rows: Sequence[EnqueuedRequest], outcome: DeviceStepResult) -> EnqueuedDrafts:
        return EnqueuedDrafts()

    def allow_device_trees(self, allowed: bool) -> None:
        return None

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        return None

    def paused(self) -> bool:
        return False

    def wanted_boundaries(self) -> tuple[int, ...]:
        return ()

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        return [()] * len(wanted)

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        return None
