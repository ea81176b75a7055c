"""The public interface of a proposer: whatever guesses the next tokens of a request.

Third parties implement `Proposer`, write a factory `(ProposerOptions) -> Proposer` and name it either in the
entry point group `slipstream.proposers` or on the command line as `NAME=module:factory[:ARGUMENT]`.

A proposer is owned by one thread: every method is called from it, never two at once. Nothing a proposer returns
can change a request's tokens, only how fast they come; still, a tree that breaks the rules of `TokenTree.validate`
costs the whole service its attachment, so the worker checks every tree and silences a proposer that raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch


CPU = "cpu"


class SessionRefusedError(Exception):
    """Raised by `Proposer.open`: this request will get no trees. The message goes to the verify service."""


@dataclass(frozen=True, slots=True)
class ProposerOptions:
    """What a factory is given.

    name: how the proposer is known to requests.
    argument: what followed the name on the command line, such as a folder; empty if nothing did.
    threads: CPU threads the proposer may use.
    max_nodes, max_depth, top_k: the operator's limits, None where the proposer chooses. `max_nodes` counts the root.
    token_map: file of the target ids that vocabulary heads are to score (FR-Spec, arXiv 2502.14856); empty: all.
    device: where to compute, `cpu` or `cuda:N`, which is there; a proposer that knows no GPU stays on the CPU. One that
        does names it as its `state_device`.
    """

    name: str
    argument: str = ""
    threads: int = 1
    max_nodes: int | None = None
    max_depth: int | None = None
    top_k: int | None = None
    device: str = CPU
    token_map: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the request's tokens are chosen, defaults filled in; see SamplingParams in sampling.proto.

    A proposer that draws the published noise with `seed` and `choice` (docs/protocol) is coupled to the target:
    both then prefer the same tokens at temperatures above 0.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """A request as it stands when a session opens: `token_ids` are the prompt and the output so far.

    prompt_length: how many of token_ids are the prompt, at least 1.
    tenant, adapter_id: state must never be shared between tenants or adapters.
    cached_length: the first position whose states will come, for proposers that want states; above 0 where those
        before it were computed before anybody wanted them, and are not kept.
    """

    token_ids: Sequence[int]
    prompt_length: int
    sampling: Sampling = field(default_factory=Sampling)
    tenant: str = ""
    adapter_id: str = ""
    cached_length: int = 0


class DraftRequest(NamedTuple):
    """A session that wants a tree for its present tokens.

    max_nodes: rows of the tree, the root included, at least 2; so at most max_nodes - 1 drafted tokens.
    max_depth: longest path below the root, at least 1.
    seconds: how long a verify step goes on waiting, at most and as far as is known.
    """

    session: int
    max_nodes: int
    max_depth: int
    seconds: float = inf


@dataclass(frozen=True, slots=True)
class Target:
    """Facts about the verify service's model, known from the moment of attachment."""

    vocab_size: int
    tokenizer_fingerprint: str
    max_context: int
    hidden_size: int = 0
    num_layers: int = 0
    feature_boundaries: tuple[int, ...] = ()
    """Boundaries whose states can be had; empty: none."""


class FollowRequest(NamedTuple):
    """A session whose tokens a pass of the target goes on with, which is under way.

    row: of the pass's results. rows: most tokens that it adds. place: of the first of the states that predict them, in
    numbers of bfloat16. max_nodes, max_depth: as in `DraftRequest`, of the tree for the tokens thereafter.
    """

    session: int
    row: int
    rows: int
    place: int
    max_nodes: int
    max_depth: int


class DraftFuture(Protocol):
    """Trees that a proposer has begun to make. The proposer is told nothing until `result` has returned or raised."""

    def wait(self, seconds: float) -> bool:
        """Wait for the device, `seconds` at most. Return whether `result` would return at once."""
        ...

    def device_trees(self) -> Sequence[TokenTree] | None:
        """Return the trees as `DeviceTree`s before the host knows them; None where only `result` has them.

        `result` is not called after trees were returned.
        """
        ...

    def result(self) -> Sequence[TokenTree | None]:
        """Return what `propose` returns; waits for the device. Called once at most."""
        ...


class CompletedDraft(NamedTuple):
    """A `DraftFuture` of a proposer that queues nothing: `result` proposes."""

    proposer: Proposer
    requests: Sequence[DraftRequest]

    def wait(self, seconds: float) -> bool:
        return True

    def device_trees(self) -> None:
        return None

    def result(self) -> Sequence[TokenTree | None]:
        return self.proposer.propose(self.requests)


class Proposer(ABC):
    """Guesses token trees for many sessions at once.

    A session is one request: `open` gives it all tokens so far, `commit` adds tokens the target has decided,
    `close` ends it. Session numbers are positive and never used twice in a process.
    """

    name: str
    """How requests name it."""
    max_nodes: int
    """Rows of the largest tree it makes, the root included; 2 to 64."""
    max_depth: int
    """Longest path it makes; 1 to 63."""
    feature_boundaries: tuple[int, ...] = ()
    """Boundaries of the target whose hidden states it wants, in the order in which it wants them side by side.

    Boundary b is the residual stream that enters layer b: 0 is the embedding, N (the target's layers) what the last
    layer leaves, N + 1 that after the final norm. `bind` may set them, once the target is known.
    """
    device: str = ""
    """Where it computes, `cpu` or `cuda:N`; empty: not told, taken for that of its options."""
    state_device: str = CPU
    """Where it takes states that are on a GPU: `cuda:N`, that of its options, or the CPU. It always takes the CPU's."""
    tokenizer_fingerprint: str = ""
    """Fingerprint of the tokenizer it depends on; empty: works with any."""
    vocab_size: int = 0
    """Entries of its vocabulary; 0: works with any."""
    target_folder: Path | None = None
    """Folder of the model that it was made for, where it is known: then its boundaries are checked before it serves."""
    trained_on_states: bool = False
    """Whether its boundaries are also checked where only the folder of the model that is served is known."""
    shares_thread: bool = False
    """Whether a verify service that runs it in its own process may call it on the thread of its steps.

    For one that computes on a GPU, and whose calls are no longer than those that queue work there: what hangs on that
    thread ends serving.
    """
    own_text_only: bool = False
    """Whether its trees follow from the session's own tokens and from weights alone.

    Otherwise clients that trace their requests are not told which tokens it drafted in vain: they may be another
    request's.
    """
    follows: bool = False
    """Whether `follow` queues rounds."""
    round_costs: Sequence[RoundCost] = ()
    """What its rounds take, for verify to weigh trees by from the first one on; empty where it has to find out.

    `bind` may measure them (`proposers.round_costs`), where sessions leave no trace behind.
    """

    @property
    def needs_states(self) -> bool:
        """Whether it makes no tree while states of older tokens are missing, so that it need not be asked before."""
        return bool(self.feature_boundaries)

    def bind(self, target: Target) -> None:  # noqa: B027 (a hook; most proposers need none)
        """Told of the target before any session opens; called again after each attachment.

        Raises FailedPreconditionError (slipstream.rpc.errors) if this proposer does not fit that target; it is then
        not offered.
        """

    @abstractmethod
    def open(self, session: int, opening: Opening) -> None:
        """Begin a session. Should only take note: heavy work belongs in `propose` and `advance`.

        Raises SessionRefusedError if this request will get no trees.
        """

    @abstractmethod
    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        """Append tokens decided by the target, at least one. Should only take note, as `open`."""

    def take_features(  # noqa: B027 (a hook; most proposers need none)
        self, session: int, first_position: int, features: torch.Tensor
    ) -> None:
        """Hidden states of a session's positions: row i is the state of first_position + i, which predicted the next.

        bfloat16 [positions, boundaries * hidden_size], the proposer's own, in the order of `feature_boundaries`. On the
        CPU, or on `state_device` where the exchange goes through the GPU's memory: then ready for what is queued on
        torch's current stream.
        Called for proposers that want any: each position once, in order and without a hole, from
        `Opening.cached_length` on. As a rule those that predicted new tokens come right after their `commit`; while a
        session is brought up to date they may lag behind. Should only take note, as `open`.
        """

    @abstractmethod
    def close(self, session: int) -> None:
        """Forget a session."""

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        """Guess what follows the present tokens of each session; one entry a request, in order.

        None or an empty tree: no guess, the target decodes this step plainly. A verify step waits a few
        milliseconds at most, so a session that needs long preparation gets None now and its preparation in `advance`.
        `log_probs`, where known, are those of the paths under the proposer's own distribution.
        """

    def begin(self, requests: Sequence[DraftRequest]) -> DraftFuture:
        """Begin with `propose`, for whoever has something else to do while a device computes.

        Override it together with `propose` where work is queued there. Until the result has given its trees nothing
        else is called but `begin`, and `follow`, once more: by a hybrid of which this is a member, or behind a step.
        """
        return CompletedDraft(self, requests)

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        """Queue on the device what `begin` would, behind a pass of the target whose results are on the way there.

        For one with `shares_thread`, beside its target. What the pass decides comes as ever, by `commit` and
        `take_features`; then `begin` may find the trees that it is asked for under way. They may be asked for
        otherwise, or not at all, and any other call may come before. Waits for nothing. The target may verify a
        tree returned here before `commit` tells of the pass. The default queues nothing.
        """
        return EnqueuedRound()

    def advance(self) -> bool:
        """Do one bounded piece of background work, such as a chunk of a long prompt.

        Called between rounds. Returns whether more work remains; False when there was none.
        """
        return False

    def settle(self) -> None:  # noqa: B027 (a hook; most proposers do their work at once)
        """Wait until a device has done what `advance` queued. Other threads may have it draft meanwhile."""

    def shut_down(self) -> None:  # noqa: B027 (a hook; most proposers need none)
        """The process ends; release what is held."""
