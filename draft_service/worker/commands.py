"""Commands from other threads to the worker, which handles them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from draft_service.proposers.base import Proposer, Target
from draft_service.protocol.codec import AttachGrant
from draft_service.protocol.records import Record
from draft_service.worker.pass_queue import PassQueue
from draft_service.worker.record_source import RecordSource
from slipstream_kernels.draft_protocol.records import Reply

Send = Callable[[list[Reply]], None]
"""Takes the replies of one pass; called on the worker's thread and must not block."""


@dataclass(frozen=True, slots=True)
class Attach:
    attachment: AttachGrant
    proposers: Sequence[Proposer]
    send: Send
    source: RecordSource | None
    queue: PassQueue | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    epoch: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Proposers that fit a target, in order, and by name why the others do not."""

    fitting: Sequence[Proposer]
    unfit: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bind:
    target: Target
    done: Future[Binding]


@dataclass(frozen=True, slots=True)
class SendReply:
    reply: Reply


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Command = Sequence[Record] | Attach | Detach | Bind | SendReply | Stop
