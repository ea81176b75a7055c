"""An EAGLE head on a device that drafts as ever, and then hands over trees of the answers themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.speculation.overwritten_trees import OverwrittenTrees, PromisedTrees
from draft_service.heads.loading import load_eagle
from draft_service.proposers.base import DraftFuture, DraftRequest, FollowRequest, Opening, Target
from draft_service.proposers.eagle.base import EagleConfig
from draft_service.proposers.eagle.gpu import GpuEagleProposer
from slipstream_kernels.device_tree import DeviceTree, known
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.token_tree import TokenTree
from support.eagle_heads import EAGLE3, Shape, write_head

ROWS, DEPTH, VOCAB, HIDDEN = 6, 3, 512, 128
NOBODYS = VOCAB - 1
"""A token that no answer has, so that what is drafted with it is wrong."""


def write_drafter(folder: Path) -> Path:
    """Write the folder of a head for `Drafter`; return it."""
    write_head(folder, EAGLE3["whole vocabulary"], Shape(HIDDEN, 96, 4, 2, VOCAB))
    return folder


class Drafter(GpuEagleProposer):
    """Drafts as ever, then hands over trees of the answers themselves, wrong from some level on.

    Keeps what it drafted, by the tokens that it followed, and counts the rounds behind passes, and in these the trees
    of sessions whose text was not computed before.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        config = EagleConfig(
            max_depth=DEPTH,
            top_k=2,
            max_nodes=ROWS,
            boundaries="0-1-2",
            max_tokens=2048,
            max_context=512,
            max_sessions=8,
        )
        super().__init__("p", load_eagle(folder, target), config, "cpu:0")
        self.answers: list[tuple[int, ...]] = []
        self.texts: dict[int, list[int]] = {}
        self.drafted: dict[tuple[int, ...], TokenTree] = {}
        self.penalised: set[int] = set()
        self.unread = True
        """Whether trees are handed over while only the device knows them."""
        self.empty_every = 0
        """At which lengths of text a tree is empty."""
        self.rounds = self.asked = self.behind = self.handed = self.emptied = self.taken = self.caught_up = 0
        self.at_read: Callable[[], None] = lambda: None
        """Told, on the loop's thread, of each tree of a device that is read."""
        self.at_first: Callable[[Sequence[int]], None] = lambda _: None
        """Told of the sessions of the first round behind a pass, which is under way, on the loop's thread."""

    def bind(self, target: Target) -> None:
        """What rounds take on a CPU's twins says nothing of trees, nor do those that were measured count."""
        super().bind(target)
        self.round_costs, self.asked = (), 0

    def open(self, session: int, opening: Opening) -> None:
        super().open(session, opening)
        self.texts[session] = list(opening.token_ids)
        if opening.sampling.repetition_penalty != 1:
            self.penalised.add(session)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        super().commit(session, token_ids)
        self.texts[session] += token_ids

    def close(self, session: int) -> None:
        super().close(session)
        del self.texts[session]

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        late = [each.row for each in requests if self._running[1][each.session].pending]
        enqueued = super().follow(requests, outcome)
        self.caught_up += sum(row in enqueued.trees for row in late)
        self.behind += 1
        if self.behind == 1:
            self.at_first([request.session for request in requests])
        return EnqueuedRound(enqueued.read, self.promised(requests, outcome, enqueued))

    def promised(
        self, requests: Sequence[FollowRequest], outcome: DevicePassResult, enqueued: EnqueuedRound
    ) -> dict[int, DeviceTree]:
        asked = [request for request in requests if request.row in enqueued.trees]
        drafted = [enqueued.trees[request.row] for request in asked]

        def make(decided: list[list[int]]) -> Watched:
            self.taken += 1
            trees: list[TokenTree] = []
            for request in asked:
                text = (*self.texts.get(request.session, ()), *decided[request.row])  # of one that is over, anything
                trees.append(self.guess(text, request.max_nodes, request.max_depth))
            return Watched(self, drafted, trees)

        promised = PromisedTrees(drafted, outcome.results, make)
        return {
            request.row: DeviceTree(promised, place, *promised.bounds[place]) for place, request in enumerate(asked)
        }

    def begin(self, requests: Sequence[DraftRequest]) -> Overwriting:
        self.asked += 1
        self.rounds += self._followed is not None
        return Overwriting(self, requests, super().begin(requests))

    def overwritten(self, request: DraftRequest) -> TokenTree:
        return self.guess(tuple(self.texts[request.session]), request.max_nodes, request.max_depth)

    def guess(self, text: tuple[int, ...], max_nodes: int, max_depth: int) -> TokenTree:
        if self.empty_every and len(text) % self.empty_every == 0:
            self.emptied += 1
            return TokenTree((), ())
        answer = next((one for one in self.answers if one[: len(text)] == text), ())
        right = len(text) % (DEPTH + 1)
        path = [*answer[len(text) :][:right], *[NOBODYS] * DEPTH][: min(max_depth, max_nodes - 1)]
        return TokenTree.chain(path)


class Overwriting(DraftFuture):
    def __init__(self, drafter: Drafter, requests: Sequence[DraftRequest], begun: DraftFuture) -> None:
        self.drafter, self.requests, self.begun = drafter, requests, begun

    def wait(self, seconds: float) -> bool:
        return self.begun.wait(seconds)

    def device_trees(self) -> list[TokenTree] | None:
        drafted = self.begun.device_trees() if self.drafter.unread else None
        if drafted is None:
            return None
        self.drafter.handed += 1
        there = [tree for tree in drafted if isinstance(tree, DeviceTree)]
        self.keep(drafted)
        trees = [self.drafter.overwritten(request) for request in self.requests]
        most = [(tree.most_nodes, tree.most_depth) for tree in there]
        assert all(len(tree) <= nodes and tree.depth <= depth for tree, (nodes, depth) in zip(trees, most, strict=True))
        overwritten = Watched(self.drafter, there, trees)
        return [DeviceTree(overwritten, row, *bounds) for row, bounds in enumerate(most)]

    def result(self) -> list[TokenTree | None]:
        trees = self.begun.result()
        self.keep(trees)
        return [self.drafter.overwritten(request) for request in self.requests]

    def keep(self, trees: Sequence[TokenTree | None]) -> None:
        for request, tree in zip(self.requests, trees, strict=True):
            assert tree is not None
            assert len(tree) < request.max_nodes and tree.depth <= request.max_depth
            if request.session not in self.drafter.penalised:  # there the tokens of the pass itself do not count yet
                self.drafter.drafted[tuple(self.drafter.texts[request.session])] = known(tree) or tree


class Watched(OverwrittenTrees):
    def __init__(self, drafter: Drafter, drafted: Sequence[DeviceTree], trees: Sequence[TokenTree]) -> None:
        super().__init__(drafted, trees)
        self.drafter = drafter

    def read(self, row: int) -> TokenTree:
        self.drafter.at_read()
        return super().read(row)
