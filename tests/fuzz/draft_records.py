"""What drafters send, as it should be: attachments, and replies that fit the steps of a played link."""

from __future__ import annotations

from random import Random

from fuzz.played_link import PROPOSER, REQUESTS, ROOT, VOCABULARY
from slipstream.v1 import draft_pb2, tree_pb2

MODES = (draft_pb2.DRAFT_MODE_UNSPECIFIED, draft_pb2.DRAFT_MODE_LOCKSTEP, draft_pb2.DRAFT_MODE_AHEAD)


def attach(random: Random, transport: str = "grpc") -> draft_pb2.AttachRequest:
    """A request that is taken."""
    message = draft_pb2.AttachRequest(
        min_version=1,
        max_version=1,
        proposers=[draft_pb2.ProposerOffer(name=PROPOSER, max_nodes=random.choice((16, 64, 64)), max_depth=63)],
        tokenizer_fingerprint="tokenizer",
        vocab_size=VOCABULARY,
        transports=[transport],
        name="fuzz",
        process_id=1,
        mode=random.choice(MODES),
    )
    if random.random() < 0.3:
        message.proposers.add(name="q", max_nodes=8, max_depth=4)
        message.share = random.choice((0.0, 0.5, 1.0))
    return message


class Guess:
    """What the maker of an input knows of the link's state, if nothing before went wrong."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.lengths: list[int] = []

    def begin(self) -> None:
        if len(self.lengths) < REQUESTS:
            self.lengths.append(3)

    def commit(self, tokens: int) -> None:
        self.lengths = [length + 1 + tokens % 4 for length in self.lengths]

    def stamp(self, ahead: int = 0) -> tree_pb2.Stamp:
        """The state of one request, or the one after so many more tokens."""
        slot = self._random.randrange(max(1, len(self.lengths)))
        length = (self.lengths[slot] if slot < len(self.lengths) else 4) + ahead
        return tree_pb2.Stamp(
            epoch=1, slot=slot, generation=1, base_length=length, root_token=(ROOT + length - 1) % VOCABULARY
        )

    def replies(self, random: Random) -> draft_pb2.ExchangeRequest:
        """Some replies of every kind."""
        message = draft_pb2.ExchangeRequest()
        for _ in range(random.choice((1, 1, 2, 4))):
            kind = random.random()
            if kind < 0.5:
                message.replies.add(tree=self._tree(random, 0))
            elif kind < 0.8:
                message.replies.add(tree=self._tree(random, random.choice((-1, 1, 2, 3))))
            elif kind < 0.92:
                message.replies.add(resume=draft_pb2.Resume(stamp=self.stamp(), have_length=random.randrange(5)))
            else:
                message.replies.add(nack=draft_pb2.Nack(stamp=self.stamp(), reason="because"))
        if random.random() < 0.05:
            message.share = random.choice((0.0, 0.5, 1.0))
        return message

    def _tree(self, random: Random, ahead: int) -> tree_pb2.TokenTree:
        count = random.choice((0, 1, 3, 15, 15, 63))
        tree = tree_pb2.TokenTree(
            stamp=self.stamp(ahead),
            token_ids=[random.randrange(VOCABULARY) for _ in range(count)],
            parents=[random.randint(-1, node - 1) for node in range(count)],
        )
        if random.random() < 0.3:
            tree.log_probs.extend(-random.expovariate(1) for _ in range(count))
        if random.random() < 0.1:
            tree.sources.extend(random.randrange(2) for _ in range(count))
        return tree
