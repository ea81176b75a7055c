"""A draft service that misbehaves as it is told, written against slipstream/v1/draft.proto and docs/protocol alone."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc
from google.protobuf.message import DecodeError

from slipstream.v1 import draft_pb2, draft_pb2_grpc, tree_pb2, verify_pb2, verify_pb2_grpc
from slipstream_kernels.ipc.byte_ring import NONCE_BYTES, RingError
from slipstream_kernels.ipc.cuda_driver import gpu_uuids
from slipstream_kernels.ipc.device_memory import CudaMemory
from support.drafters import shake_hands


class Wanted:
    """A tree that the verify service wants: its stamp and budget, and what the drafter knows about the target."""

    def __init__(self, stamp, max_nodes, max_depth, vocab_size):
        self.stamp = stamp
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.vocab_size = vocab_size

    def tree(self, token_ids, parents, **fields):
        return tree_pb2.TokenTree(**{"stamp": self.stamp, "token_ids": token_ids, "parents": parents, **fields})

    def chain(self, token_ids):
        """As much of a chain as fits what is wanted."""
        length = min(len(token_ids), self.max_nodes - 1, self.max_depth)
        return self.tree(token_ids[:length], range(-1, length - 1))

    def stamped(self, **changes):
        """The stamp with some fields replaced."""
        stamp = tree_pb2.Stamp()
        stamp.CopyFrom(self.stamp)
        for name, value in changes.items():
            setattr(stamp, name, value)
        return stamp


class HostileDrafter:
    """Attaches as proposer `name` and answers each wish with `answer(wanted)`: a list of trees, or bytes as they are.

    `delay` seconds pass before each answer. Use as a context manager; `status` holds the code that ended the exchange.
    Over `shm` and `cuda_ipc` the rings are in `rings`, the one it reads first. It asks for states at `boundaries`,
    without which there is no `cuda_ipc`, and leaves them where they are.
    """

    def __init__(
        self,
        verify_address: str,
        answer: Callable[[Wanted], list | bytes],
        *,
        name: str = "hostile",
        delay: float = 0.0,
        transport: str = "grpc",
        boundaries: Sequence[int] = (),
    ):
        self.name = name
        self._boundaries = boundaries
        self.wishes = 0
        self.epoch = 0
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.rings = None
        self._transport = transport
        self._answer = answer
        self._delay = delay
        self._replies: queue.SimpleQueue = queue.SimpleQueue()
        self._over = threading.Event()
        self._channel = grpc.insecure_channel(verify_address, options=(("grpc.use_local_subchannel_pool", 1),))
        # Messages to verify go out as bytes, so that they may be anything.
        self._exchange = self._channel.stream_stream(
            "/slipstream.v1.DraftLinkService/Exchange",
            response_deserializer=draft_pb2.ExchangeResponse.FromString,
        )
        self._link = draft_pb2_grpc.DraftLinkServiceStub(self._channel)
        self._verify = verify_pb2_grpc.VerifyServiceStub(self._channel)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        info = self._link.GetInfo(draft_pb2.DraftLinkServiceGetInfoRequest(), timeout=60, wait_for_ready=True)
        self._vocab_size = info.vocab_size
        attached = self._link.Attach(
            draft_pb2.AttachRequest(
                min_version=1,
                max_version=1,
                proposers=[
                    draft_pb2.ProposerOffer(
                        name=self.name, max_nodes=64, max_depth=63, feature_boundaries=self._boundaries
                    )
                ],
                tokenizer_fingerprint=info.tokenizer_fingerprint,
                vocab_size=info.vocab_size,
                transports=[self._transport],
                name="hostile",
                process_id=os.getpid(),
                gpu_uuid=next(iter(gpu_uuids()), ""),
            ),
            timeout=60,
        )
        self.epoch = attached.epoch
        assert attached.transport == self._transport, attached
        if self._transport != "grpc":
            self.rings = shake_hands(attached, _device_nonce(attached) if self._transport == "cuda_ipc" else b"")
        self._call = self.exchange_again()
        self._thread.start()
        try:
            self._wait_attached(time.monotonic() + 60)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._over.set()
        self._replies.put(None)
        self._call.cancel()
        self._thread.join(60)
        self._channel.close()

    def exchange_again(self):
        """Open the exchange of this epoch, perhaps not for the first time."""
        outgoing = self._outgoing() if self._transport == "grpc" else self._silence()
        metadata = (("slipstream-epoch", str(self.epoch)), ("slipstream-transport", self._transport))
        return self._exchange(outgoing, metadata=metadata)

    def send(self, data: bytes) -> None:
        """Send bytes on their own."""
        if self.rings is None:
            self._replies.put(data)
        else:
            self._write(data)

    def wait_ended(self, timeout: float = 60.0) -> grpc.StatusCode | None:
        """The status that ended the exchange, None if it goes on."""
        self._thread.join(timeout)
        return self.status

    def _wait_attached(self, deadline: float) -> None:
        while not self._attached():
            assert not self._over.is_set(), f"the exchange ended: {self.status} {self.details}"
            assert time.monotonic() < deadline, "never attached"
            time.sleep(0.01)

    def _attached(self) -> bool:
        info = self._verify.GetInfo(verify_pb2.GetInfoRequest(), timeout=60)
        return any(proposer.name == self.name and proposer.attached for proposer in info.proposers)

    def _outgoing(self) -> Iterator[bytes]:
        while (data := self._replies.get()) is not None:
            yield data

    def _silence(self) -> Iterator[bytes]:
        self._over.wait()
        yield from ()

    def _run(self) -> None:
        picker = threading.Thread(target=self._pick_up, daemon=True)
        if self.rings is not None:
            picker.start()
        try:
            for response in self._call:
                self._take(response)
        except grpc.RpcError as error:
            self.status, self.details = error.code(), error.details()
        finally:
            self._over.set()
            self._replies.put(None)
            if self.rings is not None:
                picker.join(60)

    def _pick_up(self) -> None:
        """Read the ring until the exchange is over."""
        while not self._over.is_set():
            try:
                data = self.rings[0].read(1 << 24)
                response = None if data is None else draft_pb2.ExchangeResponse.FromString(data)
            except (RingError, DecodeError):
                return  # its own scribbles
            if response is None:
                self.rings[0].wait(0.02)
            else:
                self._take(response)

    def _take(self, response: draft_pb2.ExchangeResponse) -> None:
        for command in response.commands:
            kind = command.WhichOneof("kind")
            if kind in ("open", "commit"):
                self._take_record(getattr(command, kind))

    def _take_record(self, record) -> None:
        if record.max_nodes > 1:
            self.wishes += 1
            if self._delay:
                time.sleep(self._delay)
            answer = self._answer(Wanted(record.stamp, record.max_nodes, record.max_depth, self._vocab_size))
            if isinstance(answer, bytes):
                self.send(answer)
            elif answer:
                replies = [draft_pb2.DraftReply(tree=tree) for tree in answer]
                self.send(draft_pb2.ExchangeRequest(replies=replies).SerializeToString())

    def _write(self, data: bytes) -> None:
        try:
            while not self._over.is_set() and not self.rings[1].write(data):
                time.sleep(0.001)
        except RingError:
            return  # its own scribbles


def _device_nonce(attached: draft_pb2.AttachResponse) -> bytes:
    """What shows that the ring on the GPU was opened, which stays mapped."""
    ring = attached.device_ring
    return CudaMemory().open(ring.handle, ring.size, ring.gpu_uuid).read_nonce(NONCE_BYTES)
