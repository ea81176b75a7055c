"""A draft link whose drafter is the fuzzer and whose verify loop is played: the steps of one input."""

from __future__ import annotations

from itertools import count

from fuzz.target import BrokenError
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError, SlipstreamError, UnavailableError
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from support.played_link import FACTS
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import decode_attach
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig

REQUESTS = 3
SLOTS = 4
PROPOSER = "p"
VOCABULARY = FACTS.vocab_size
ROOT = 10
"""First token that a step commits; the next step's is one higher."""


def key_of(number: int) -> RequestKey:
    return RequestKey(1, number % REQUESTS)


class PlayedLink:
    """Epochs count from 1, requests get slots in the order in which they begin, and time passes as it is asked for."""

    def __init__(self) -> None:
        ticks = count()
        self.link = DraftLink(
            FACTS,
            LinkConfig(deadline=1e-6, num_slots=SLOTS, spin=0.0),
            epochs=count(1),
            clock=lambda: next(ticks) * 1e-3,
        )
        self.wishes: dict[RequestKey, tuple[int, int]] = {}
        """Nodes, root included, and depth that the last step wanted, of the requests that run."""
        self._tokens: dict[RequestKey, list[int]] = {}

    def attach(self, data: bytes, transport: str = "") -> Attachment | None:
        """What a drafter that sends these bytes attains; None where it is refused."""
        try:
            reply = self.link.attach(decode_attach(data), loopback=True)
            return self.link.start(reply.epoch, lambda: None, transport)
        except SlipstreamError:
            return None

    def begin(self, number: int) -> None:
        key = key_of(number)
        if key not in self._tokens:
            self._tokens[key] = [1, 2, 3]
            self.wishes[key] = (1, 0)
            self.link.begin(RequestOpening(key, PROPOSER, (1, 2, 3), 2, SamplingParams(seed=1), 0, "", "", 0))

    def commit(self, tokens: int, nodes: int, depth: int) -> None:
        """A step adds so many tokens to each request, and wants trees of that size."""
        nodes, depth = 1 + nodes % MAX_ROWS, depth % MAX_ROWS
        commits: list[Committed] = []
        for key, told in self._tokens.items():
            added = [(ROOT + len(told) + index) % VOCABULARY for index in range(1 + tokens % 4)]
            told.extend(added)
            self.wishes[key] = (nodes, depth)
            commits.append(Committed(key, tuple(added), len(told), nodes, depth))
        self.link.commit(commits)

    def collect(self) -> None:
        """Every tree that a step is given must be in order."""
        wanted = [key for key, (nodes, depth) in self.wishes.items() if nodes > 1 and depth > 0]
        for key, tree in zip(wanted, self.link.collect(wanted), strict=True):
            if tree is not None:
                _check(tree, *self.wishes[key])

    def end(self, number: int) -> None:
        key = key_of(number)
        if self._tokens.pop(key, None) is not None:
            del self.wishes[key]
            self.link.end(key, FinishReason.STOP)

    def drop(self, attachment: Attachment, error: SlipstreamError) -> None:
        """What the servicer does with an error of an exchange; only the drafter may be to blame."""
        if not isinstance(error, InvalidArgumentError):
            raise BrokenError(f"the exchange ended with {error!r}")
        self.link.drop(attachment, error)

    def close(self) -> None:
        """The service stops; nothing of it is left."""
        for number in range(REQUESTS):
            self.end(number)
        attachments = list(self.link._router.attachments.values())
        self.link.close()
        for attachment in attachments:
            if not isinstance(attachment.ended, UnavailableError | InvalidArgumentError):
                raise BrokenError(f"an attachment ended with {attachment.ended!r}")
            if attachment.transport is not None:
                attachment.transport.release()
        if self.link.state().attachments:
            raise BrokenError(f"left attached: {self.link.state()}")


def _check(tree: TokenTree, nodes: int, depth: int) -> None:
    fresh = TokenTree(tree.token_ids, tree.parents, tree.log_probs)  # of which nothing is known yet
    fresh.validate(vocab_size=VOCABULARY, max_nodes=nodes - 1, max_depth=depth)
    if (tree.depth, tuple(tree.depths)) != (fresh.depth, tuple(fresh.depths)):
        raise BrokenError(f"depths of {tree}")
    if tree.sources is not None and len(tree.sources) != len(tree):
        raise BrokenError(f"sources of {tree}")
