"""What a verify service sends, into a draft service with real proposers."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import ClassVar

from draft_service.proposers.base import Target as TargetFacts
from draft_service.proposers.registry import ProposerSpec, load_proposers
from draft_service.protocol.codec import AttachGrant, decode_command_bytes, encode_replies
from draft_service.worker.commands import Attach, Bind
from draft_service.worker.worker import Worker
from fuzz.messages import made
from fuzz.raw_bytes import joined, parted
from fuzz.target import BrokenError, Target
from slipstream.rpc.errors import UnavailableError
from slipstream.v1 import draft_pb2, sampling_pb2, tensor_pb2, tree_pb2
from slipstream_kernels.draft_protocol.records import Reply
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from support.models import make_tiny_model
from verify_service.draft_link.codec import decode_replies

_VOCABULARY, _CONTEXT, _SLOTS = 512, 128, 4


class _Guess:
    """The state of each slot, if all went well so far."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._tokens: dict[int, list[int]] = {}
        self._generation = dict.fromkeys(range(_SLOTS), 0)

    def commands(self, random: Random) -> draft_pb2.ExchangeResponse:
        message = draft_pb2.ExchangeResponse()
        for _ in range(random.choice((1, 1, 2, 3))):
            slot = random.randrange(_SLOTS)
            kind = random.random()
            if slot not in self._tokens:
                self._open(random, slot, message.commands.add().open)
            elif kind < 0.7:
                self._commit(random, slot, message.commands.add().commit)
            elif kind < 0.8:
                message.commands.add(gap=draft_pb2.Gap(stamp=self._stamp(slot), dropped=1))
            elif kind < 0.9:
                message.commands.add(close=draft_pb2.Close(stamp=self._stamp(slot), reason=1))
                del self._tokens[slot]
            else:
                message.commands.add(extend=draft_pb2.Extend(stamp=self._stamp(slot), features=_states(random, 1)))
        return message

    def _open(self, random: Random, slot: int, message: draft_pb2.Open) -> None:
        self._generation[slot] += 1
        self._tokens[slot] = tokens = [random.randrange(8) for _ in range(random.choice((1, 4, 30)))]
        message.stamp.CopyFrom(self._stamp(slot))
        message.proposer, message.prompt_length = random.randrange(3), len(tokens)
        message.token_ids.extend(tokens)
        message.sampling.CopyFrom(sampling_pb2.SamplingParams(temperature=random.choice((0.0, 1.0)), seed=3, top_k=40))
        message.max_nodes, message.max_depth = random.choice((1, 8, 64)), random.choice((1, 4, 63))

    def _commit(self, random: Random, slot: int, message: draft_pb2.Commit) -> None:
        added = [random.randrange(8) for _ in range(random.choice((1, 1, 2, 4)))]
        self._tokens[slot].extend(added)
        message.stamp.CopyFrom(self._stamp(slot))
        message.token_ids.extend(added)
        message.max_nodes, message.max_depth = random.choice((1, 8, 16, 64)), random.choice((1, 4, 63))
        if random.random() < 0.1:
            message.features.CopyFrom(_states(random, len(added)))

    def _stamp(self, slot: int) -> tree_pb2.Stamp:
        tokens = self._tokens[slot]
        return tree_pb2.Stamp(
            epoch=1, slot=slot, generation=self._generation[slot], base_length=len(tokens), root_token=tokens[-1]
        )


def _states(random: Random, rows: int) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_BFLOAT16, shape=[rows, 4], data=random.randbytes(8 * rows))


class DraftCommands(Target):
    """Malformed messages end the exchange; of all others the replies are such as a verify service takes."""

    name: ClassVar[str] = "draft_commands"
    share: ClassVar[int] = 30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        model = make_tiny_model(folder / "d", layers=1, hidden_size=64, heads=1, max_context=_CONTEXT)
        specs = ("ngram", "suffix", f"draft-model:{model}")
        self._worker = Worker(load_proposers([ProposerSpec.parse(spec) for spec in specs], threads=1))
        facts = TargetFacts(_VOCABULARY, fingerprint(model).tokenizer, _CONTEXT, 64, 1)
        bound: Future = Future()
        self._worker._handle(Bind(facts, bound))
        self._offered = bound.result().fitting
        if len(self._offered) != len(specs):
            raise BrokenError(f"offered are {self._offered}")

    def make(self, random: Random) -> bytes:
        guess = _Guess(random)
        parts: list[bytes] = []
        for _ in range(1 + int(random.expovariate(0.3))):
            valid = random.random() < 0.7
            parts.append(guess.commands(random).SerializeToString() if valid else made(random, [guess.commands]))
        return joined(parts)

    def check(self, data: bytes) -> None:
        worker = self._worker
        worker._newest = {}
        worker._handle(Attach(AttachGrant(1, _SLOTS, deadline=1.0), self._offered, self._take, None))
        for part in parted(data):
            try:
                records = decode_command_bytes(part)
            except UnavailableError:
                break
            worker._note(records)
            replies = worker._handle(records)
            worker._batch = worker._ask(replies)
            self._take(worker._answers())
            for proposer in self._offered:
                proposer.advance()
        worker._leave()

    def settle(self) -> None:
        if self._worker._table is not None or self._worker.stats.sessions:
            raise BrokenError(f"left: {self._worker._table} {self._worker.stats}")

    def close(self) -> None:
        self._worker._shut_down()

    def _take(self, replies: list[Reply]) -> None:
        """As a verify service would."""
        if replies:
            for reply in decode_replies(encode_replies(replies).SerializeToString(), 1 << 16):
                tree = getattr(reply, "tree", None)
                if tree is not None:
                    tree.validate(vocab_size=_VOCABULARY, max_nodes=63, max_depth=63)
