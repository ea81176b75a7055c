"""What the verify loop asks of an engine: steps that are launched, then decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from slipstream.generation_types import PositionLogprobs
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.prompt_scores import PromptScores
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult, Routes, StepHandle, StepTimes, VerifyResult
from verify_service.model_runner.captured_states import CapturedStates

if TYPE_CHECKING:
    import torch


L = TypeVar("L", bound=StepHandle)


class ModelRunner(Protocol[L]):
    """Owns the target model, its KV cache and the sampling parameters of running requests.

    Steps are decided in the order they were launched, and work as if each was over before the next began: a step
    reads the KV, the last tokens and the output counts that the one before it left behind. Used by one thread.
    """

    @property
    def lookahead(self) -> int:
        """How many steps may be launched beyond one that is not decided yet.

        0 for an engine that computes within `launch`. Where that one has trees, one step may: its items are
        `unresolved` whose requests that one decides for, and all of its items of one token decide.
        """
        ...

    @property
    def takes_unresolved_trees(self) -> bool:
        """Whether unresolved items may have trees that one round on a device drafts behind the step before."""
        ...

    def begin(self, state: RequestState) -> None:
        """A request takes row `state.kv.req_index` of the tables, from the next step launched on."""
        ...

    def pack_adapter(self, adapter: LoraAdapter, slot: int) -> Any:
        """What `install_adapter` takes for a slot that is empty. May be called by any thread, beside steps."""
        ...

    def install_adapter(self, slot: int, packed: Any) -> None:
        """Requests whose parameters name the slot have this adapter, from the next step launched on."""
        ...

    def remove_adapter(self, slot: int) -> None:
        """Empty a slot that no request names any more."""
        ...

    @property
    def feature_boundaries(self) -> Sequence[int]:
        """Boundaries whose states can be captured; see `slipstream_kernels.models.capture_layers`."""
        ...

    def capture(self, boundaries: tuple[int, ...]) -> None:
        """Keep the states of these boundaries from the next step launched on, of none if there are none."""
        ...

    def prepare(self) -> bool:
        """Do some work ahead that steps would take their time for; whether there may be more of it.

        To be called while no step is under way and no request waits: may take some 0.1 s.
        """
        ...

    def direct(self, routes: Callable[[], Routes]) -> None:
        """Where the next step launched puts states of its items on the device, beside keeping them for `states`.

        Of each item's tokens, then of its accepted nodes. Asked once, as soon as the step is under way.
        """
        ...

    def states(self, launched: L) -> CapturedStates | None:
        """What a decided step has captured; None where nothing was asked for as it was launched."""
        ...

    def launch(self, items: Sequence[ScheduledRequest]) -> L:
        """Start a step over all rows of `items`; with a lookahead of 1 or more, without waiting for anything.

        A row whose token is not in `state.tokens` yet takes the one that the step before decides. No request is in
        `items` twice. The page table is read as it stands now.
        """
        ...

    def outcome(self, launched: L) -> DeviceStepResult | None:
        """What a step that was just launched will leave for others to compute with; None where nothing stays there."""
        ...

    def begin_masks(self, launched: L) -> None:
        """Compute masks that the step just launched is to have, if there are any, before the loop does other work.

        What `decide` leaves to be done there is done in any case; this makes it earlier.
        """
        ...

    def start_after(self, read: torch.cuda.Event) -> None:
        """The next step overwrites what somebody reads of an outcome until this event comes."""
        ...

    @property
    def grammar_seconds(self) -> GrammarSeconds:
        """What deciding steps has cost for the sake of grammars."""
        ...

    def decide(self, launched: L) -> list[VerifyResult]:
        """Wait for a step: the tokens of every request it decides, in the order of `launched.deciding`.

        Then the KV of the step's tokens and of all accepted nodes is in page slots.
        """
        ...

    def times(self, launched: L) -> StepTimes | None:
        """What a decided step took the engine, by the engine's own clock; None where it has none."""
        ...

    def commit(self, state: RequestState, tokens: Sequence[int]) -> None:
        """Count tokens as output of a request that goes on."""
        ...

    def logprobs(self, launched: L, decision: VerifyResult, count: int) -> tuple[PositionLogprobs, ...]:
        """Logprobs of the first `count` tokens of a decision, from the raw logits; none unless its request wants them.

        To be called before the second launch after that of the decision's step.
        """
        ...

    def prompt_scores(self, launched: L, item: ScheduledRequest) -> PromptScores:
        """Logprobs of the tokens that follow the positions `item.scored`, from the raw logits. The step is decided."""
        ...

    def pass_costs(self) -> list[tuple[int, int, float]]:
        """(requests, rows, seconds) of decode passes; the nodes of their trees are rows, too.

        To be called before any request runs.
        """
        ...

    def warm_up(self) -> None:
        """Compile or load what requests would wait for otherwise. To be called before any request runs."""
        ...
