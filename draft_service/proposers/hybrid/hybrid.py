"""Hybrid proposer: the trees of other proposers of this process as one tree under one budget of nodes.

Every member drafts for every state, unless verify would not wait so long for all of them (`member_timing`). Equal
prefixes are merged, and the nodes of the highest path probability are kept (`merging`). What a member's own
probabilities are worth is learned from the tokens that the target decides: by member, by how the member did at the
request's last step, by reach of the tree and depth of the node, and by who else drafted it or something else in its
place (`slipstream_kernels.calibration`). So suffix matches, n-grams and a model's drafts compete for the same rows on
one scale. To choose between a suffix match and a model by the match's score, as Arctic Inference does, is the case of
one source a step.

A member that refuses a session, raises or returns anything but a valid tree has no part in that session any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING

from draft_service.proposers.base import (
    CPU,
    DraftRequest,
    Opening,
    Proposer,
    ProposerOptions,
    SessionRefusedError,
    Target,
)
from draft_service.proposers.composite import Composite
from draft_service.proposers.hidden_states import placed
from draft_service.proposers.hybrid.member_timing import MemberTimer
from draft_service.proposers.hybrid.merging import MergedDraft, accept_length_class
from draft_service.proposers.options import configured
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.calibration import Calibration
from slipstream_kernels.token_tree import MAX_ROWS, InvalidTreeError, TokenTree

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Limits of the merged tree, 0 for the largest that the members make together. `memory`: trials remembered."""

    max_nodes: int = 0
    max_depth: int = 0
    memory: float = 1000.0

    def __post_init__(self) -> None:
        if self.max_nodes not in (0, *range(2, MAX_ROWS + 1)) or not 0 <= self.max_depth < MAX_ROWS:
            raise ValueError("max_nodes must be 2 to 64, max_depth 1 to 63")
        if not self.memory >= 10:
            raise ValueError("memory must be 10 or more")


@dataclass(slots=True)
class _Session:
    """A request: its members, the accept length class of each at the last step, those asked last, and their draft."""

    members: list[str]
    recent_accept_length: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    draft: MergedDraft | None = None


class HybridProposer(Composite):
    """Merges what its members draft. `wanted`: their names, empty for all other proposers of the process.

    `clock`: seconds that only grow.
    """

    def __init__(
        self,
        name: str,
        config: HybridConfig,
        wanted: Sequence[str] = (),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.name = name
        self.config = config
        self.max_nodes, self.max_depth = 2, 1
        self.calibration = Calibration(memory=config.memory)
        self.timer = MemberTimer()
        self._clock = clock
        self._wanted = tuple(wanted)
        self._members: dict[str, Proposer] = {}
        self._fitting: list[str] = []
        self._vocabulary = 0
        self._sessions: dict[int, _Session] = {}

    def join(self, others: Mapping[str, Proposer]) -> None:
        possible = {name: other for name, other in others.items() if not isinstance(other, Composite)}
        missing = [name for name in self._wanted if name not in possible]
        if missing or not possible:
            raise InvalidArgumentError(
                f"proposer {self.name} needs {', '.join(missing) or 'others'} beside it; "
                f"there are {', '.join(possible) or 'none'}",
                field="proposers",
            )
        self._members = {name: possible[name] for name in self._wanted or possible}
        members = self._members.values()
        together = 1 + sum(member.max_nodes - 1 for member in members)
        self.max_nodes = self.config.max_nodes or min(MAX_ROWS, together)
        self.max_depth = self.config.max_depth or max(member.max_depth for member in members)
        self.vocab_size = next((member.vocab_size for member in members if member.vocab_size), 0)
        self.tokenizer_fingerprint = next(filter(None, (member.tokenizer_fingerprint for member in members)), "")

    @property
    def needs_states(self) -> bool:
        return all(self._members[name].needs_states for name in self._fitting)

    @property
    def own_text_only(self) -> bool:  # type: ignore[override]  # which others state once and for all
        return all(member.own_text_only for member in self._members.values())

    def bind(self, target: Target) -> None:
        self._vocabulary = target.vocab_size
        self._fitting = []
        for name, member in self._members.items():
            try:
                member.bind(target)
                self._fitting.append(name)
            except Exception as error:  # noqa: BLE001 (a third party's code; the others may fit)
                _log.warning("%s goes without %s: %s", self.name, name, error)
        if not self._fitting:
            raise FailedPreconditionError("none of its members fits the target")
        members = [self._members[name] for name in self._fitting]
        measured = [member.round_costs for member in members if member.round_costs]
        self.round_costs = measured[0] if len(measured) == 1 else ()  # the others look up, and take next to nothing
        self.feature_boundaries = tuple(sorted({b for member in members for b in member.feature_boundaries}))
        places = {member.device for member in members}
        self.device = max(places - {CPU}, default=CPU)
        readers = [member.state_device for member in members if member.feature_boundaries]
        self.state_device = next((device for device in readers if device != CPU), CPU)

    def open(self, session: int, opening: Opening) -> None:
        members = []
        reasons = []
        for name in self._fitting:
            try:
                self._members[name].open(session, opening)
                members.append(name)
            except SessionRefusedError as refusal:
                reasons.append(f"{name}: {refusal}")
            except Exception:  # noqa: BLE001 (a third party's code; the others go on)
                _log.exception("member %s failed to open a session", name)
                reasons.append(f"{name} failed")
        if not members:
            raise SessionRefusedError("; ".join(reasons) or "no member fits the target")
        self._sessions[session] = _Session(members)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        state = self._sessions[session]
        right = {} if state.draft is None else state.draft.learn(token_ids)
        state.recent_accept_length |= {name: accept_length_class(tokens) for name, tokens in right.items()}
        for name in state.asked:
            self.timer.record_accepted(name, right.get(name, 0))
        state.draft, state.asked = None, []
        for name in tuple(state.members):
            try:
                self._members[name].commit(session, token_ids)
            except Exception:  # noqa: BLE001 (a third party's code; the others go on)
                _log.exception("member %s failed to take tokens", name)
                self._leave_out(session, name)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        blocks = features.view(len(features), len(self.feature_boundaries), -1)
        for name in tuple(self._sessions[session].members):
            member = self._members[name]
            chosen = [self.feature_boundaries.index(boundary) for boundary in member.feature_boundaries]
            try:
                if chosen:
                    member.take_features(session, first_position, placed(blocks[:, chosen].flatten(1), member))
            except Exception:  # noqa: BLE001 (a third party's code; the others go on)
                _log.exception("member %s failed to take features", name)
                self._leave_out(session, name)

    def close(self, session: int) -> None:
        for name in tuple(self._sessions[session].members):
            self._leave_out(session, name)
        del self._sessions[session]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        drafted: list[dict[str, TokenTree]] = [{} for _ in requests]
        for request in requests:
            self._sessions[request.session].asked = []
        seconds = min((request.seconds for request in requests), default=math.inf)
        for name in self.timer.choose(self._fitting, len(requests), seconds):
            member = self._members[name]
            asked = [i for i, request in enumerate(requests) if name in self._sessions[request.session].members]
            limited = [
                requests[i]._replace(
                    max_nodes=min(requests[i].max_nodes, member.max_nodes),
                    max_depth=min(requests[i].max_depth, member.max_depth, self.max_depth),
                )
                for i in asked
            ]
            begun = self._clock()
            for i, tree in zip(asked, self._ask(name, limited), strict=True):
                self._sessions[requests[i].session].asked.append(name)
                if tree is not None and len(tree):
                    drafted[i][name] = tree
            self.timer.record_call(name, sum(name in trees for trees in drafted), self._clock() - begun)
        return [self._merge(request, trees) for request, trees in zip(requests, drafted, strict=True)]

    def _merge(self, request: DraftRequest, trees: Mapping[str, TokenTree]) -> TokenTree | None:
        if not trees:
            return None
        state = self._sessions[request.session]
        state.draft = MergedDraft.of(self.calibration, trees, state.recent_accept_length)
        return state.draft.best(min(request.max_nodes, self.max_nodes) - 1)

    def _ask(self, name: str, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        """A member's trees; it loses the sessions for which it fails alone or returns what is no valid tree."""
        if not requests:
            return []
        try:
            trees = list(self._members[name].propose(requests))
            if len(trees) != len(requests):
                raise InvalidTreeError(f"{len(trees)} trees for {len(requests)} requests")
        except Exception as error:  # noqa: BLE001 (a third party's code)
            if len(requests) > 1:
                return [self._ask(name, [request])[0] for request in requests]
            _log.error("member %s failed: %.200s", name, error)
            self._leave_out(requests[0].session, name)
            return [None]
        return [self._checked(name, request, tree) for request, tree in zip(requests, trees, strict=True)]

    def _checked(self, name: str, request: DraftRequest, tree: object) -> TokenTree | None:
        try:
            if tree is None:
                return None
            if not isinstance(tree, TokenTree):
                raise InvalidTreeError(f"{type(tree).__name__} is no TokenTree")
            tree.validate(vocab_size=self._vocabulary, max_nodes=request.max_nodes - 1, max_depth=request.max_depth)
            if not all(map(math.isfinite, tree.log_probs or ())):
                raise InvalidTreeError("log_probs must be finite")
            return tree
        except Exception as error:  # noqa: BLE001 (a third party's objects may fail in any way)
            _log.error("member %s made a malformed tree: %.200s", name, error)
            self._leave_out(request.session, name)
            return None

    def _leave_out(self, session: int, name: str) -> None:
        """A member has no part in a session any more."""
        self._sessions[session].members.remove(name)
        try:
            self._members[name].close(session)
        except Exception:  # noqa: BLE001 (a third party's code; it is not asked again)
            _log.exception("member %s failed to close a session", name)


def create(options: ProposerOptions) -> HybridProposer:
    """Factory. The argument: names of members, such as `suffix+ngram`, and KEY=VALUE with fields of HybridConfig."""
    parts = [part for part in options.argument.split(":") if part]
    wanted = parts.pop(0).split("+") if parts and "=" not in parts[0] else []
    if len(set(wanted)) != len(wanted):
        raise InvalidArgumentError(f"proposer {options.name}: members repeat", field="proposers")
    return HybridProposer(options.name, configured(HybridConfig(), replace(options, argument=":".join(parts))), wanted)
