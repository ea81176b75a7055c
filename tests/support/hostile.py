"""A draft service that misbehaves as it is told, written against slipstream/v1/draft.proto alone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from slipstream.v1 import draft_pb2, draft_pb2_grpc, tree_pb2, verify_pb2, verify_pb2_grpc


class Wanted:
    """A tree that the verify service wants: its stamp and budget, and what the drafter knows about the target."""

    def __init__(self, stamp, max_nodes, max_depth, vocab_size):
        self.stamp = stamp
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.vocab_size = vocab_size

    def tree(self, token_ids, parents, **fields):
        return tree_pb2.TokenTree(**{"stamp": self.stamp, "token_ids": token_ids, "parents": parents, **fields})

    def stamped(self, **changes):
        """The stamp with some fields replaced."""
        stamp = tree_pb2.Stamp()
        stamp.CopyFrom(self.stamp)
        for name, value in changes.items():
            setattr(stamp, name, value)
        return stamp


class HostileDrafter:
    """Attaches as proposer `name` and answers each wish with `answer(wanted)`: a list of trees.

    `delay` seconds pass before each answer. Use as a context manager; `status` holds the code that ended the exchange.
    """

    def __init__(
        self, verify_address: str, answer: Callable[[Wanted], list], *, name: str = "hostile", delay: float = 0.0
    ):
        self.name = name
        self.wishes = 0
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self._answer = answer
        self._delay = delay
        self._replies: queue.SimpleQueue = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(verify_address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._link = draft_pb2_grpc.DraftLinkServiceStub(self._channel)
        self._verify = verify_pb2_grpc.VerifyServiceStub(self._channel)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        info = self._link.GetInfo(draft_pb2.DraftLinkServiceGetInfoRequest(), timeout=5, wait_for_ready=True)
        self._vocab_size = info.vocab_size
        attached = self._link.Attach(
            draft_pb2.AttachRequest(
                min_version=1,
                max_version=1,
                proposers=[draft_pb2.ProposerOffer(name=self.name, max_nodes=64, max_depth=63)],
                tokenizer_fingerprint=info.tokenizer_fingerprint,
                vocab_size=info.vocab_size,
                transports=["grpc"],
                name="hostile",
            ),
            timeout=5,
        )
        self._call = self._link.Exchange(self._outgoing(), metadata=(("slipstream-epoch", str(attached.epoch)),))
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._attached():
            assert time.monotonic() < deadline, "never attached"
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._replies.put(None)
        self._call.cancel()
        self._thread.join(10)
        self._channel.close()

    def wait_ended(self, timeout: float = 10.0) -> grpc.StatusCode | None:
        """The status that ended the exchange, None if it goes on."""
        self._thread.join(timeout)
        return self.status

    def _attached(self) -> bool:
        info = self._verify.GetInfo(verify_pb2.GetInfoRequest(), timeout=5)
        return any(proposer.name == self.name and proposer.attached for proposer in info.proposers)

    def _outgoing(self) -> Iterator[draft_pb2.ExchangeRequest]:
        while (replies := self._replies.get()) is not None:
            yield draft_pb2.ExchangeRequest(replies=replies)

    def _run(self) -> None:
        try:
            for response in self._call:
                for command in response.commands:
                    self._take(command)
        except grpc.RpcError as error:
            self.status, self.details = error.code(), error.details()
        finally:
            self._replies.put(None)

    def _take(self, command: draft_pb2.DraftCommand) -> None:
        kind = command.WhichOneof("kind")
        if kind not in ("open", "commit"):
            return
        record = getattr(command, kind)
        if record.max_nodes > 1:
            self.wishes += 1
            if self._delay:
                time.sleep(self._delay)
            trees = self._answer(Wanted(record.stamp, record.max_nodes, record.max_depth, self._vocab_size))
            if trees:
                self._replies.put([draft_pb2.DraftReply(tree=tree) for tree in trees])
