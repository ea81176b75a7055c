"""The exchange within one process: how the verify service holds proposers that run beside it.

The two know each other by this interface alone: verify finds the host by its entry point. Records are those of the
exchange. The ones of every step, commits and trees, and those that carry states are handed over as they are, states as
bits that are not written any more; all others as the messages that would carry them between processes, so that they
mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.records import Commit, Extend, Stamp, TreeReply
from slipstream_kernels.ipc.device_memory import DeviceBlock
from slipstream_kernels.models.capture_layers import Bits

if TYPE_CHECKING:
    import torch

HOST_ENTRY_POINTS = "slipstream.proposer_hosts"
"""Name of the entry point group; each entry is a `HostFactory`."""
IN_PROCESS = "inproc"
"""Name of the transport, and of the entry point."""

BOUNDARY_CHECK_MIB = 32_768
"""Weights of the largest target that is read to check boundaries, where the operator does not say."""


def _came() -> bool:
    return True


class DevicePassResult(NamedTuple):
    """What a pass under way leaves on its device, once `ready` comes; None where all is there.

    results: int32 [items, 130], as `tree_walk` writes them. states: bfloat16 [any], the block that came with the
    attachment. came: whether what `ready` was for had come by then, for which it waits; else results are zeros, and
    whatever was computed with them is void.
    """

    results: torch.Tensor
    states: torch.Tensor
    ready: torch.cuda.Event | None
    came: Callable[[], bool] = _came


class EnqueueRequest(NamedTuple):
    """A request of a pass under way, of whose next state all is known but what the pass decides.

    stamp: of the present state. row: of the results. rows: most tokens that the pass adds. place: of the first of the
    states that predict them, in numbers. max_nodes, max_depth: limits of the tree for the next state.
    """

    stamp: Stamp
    row: int
    rows: int
    place: int
    max_nodes: int
    max_depth: int


class EnqueuedRound(NamedTuple):
    """A round that was queued behind a pass.

    read: once all of these events have come nothing of the pass's outcome is read any more. trees: by a request's row
    of the results, the tree for whichever state the pass leads to.
    """

    read: Sequence[torch.cuda.Event] = ()
    trees: Mapping[int, DeviceTree] = MappingProxyType({})


Commands = Sequence[Commit[Bits] | Extend[Bits] | bytes]
"""What one step says, in order: commits and states, and ExchangeResponse messages."""
Replies = Sequence[TreeReply | bytes]
"""What one round of drafting answers: trees, and ExchangeRequest messages."""
Answer = Callable[[Replies], None]
"""Takes replies on the host's own thread. Neither waits nor raises."""


class ProposerHost(Protocol):
    """Proposers on a thread of their own. All methods are called from threads of the verify service.

    Those that say so are called on the thread of its steps too, so that none has to wait for the other's.
    """

    @property
    def spin(self) -> float:
        """How many seconds either side looks for what the other says before it sleeps; 0 where it sleeps at once."""
        ...

    def offer(self, link_info: bytes) -> bytes:
        """An AttachRequest for the target of a DraftLinkServiceGetInfoResponse.

        FailedPreconditionError (slipstream.rpc.errors) unless every proposer fits.
        """
        ...

    @property
    def state_device(self) -> str:
        """Where the proposers take states that are on a GPU, `cuda:N`; `cpu` where any of them cannot."""
        ...

    def attach(self, attached: bytes, answer: Answer, block: DeviceBlock | None = None) -> None:
        """Begin the exchange that an AttachResponse has agreed on; `answer` gets the replies.

        Through `block`, memory of the model's device, states may come, which are there when a record names them.
        """
        ...

    @property
    def released(self) -> int:
        """Of how many calls of `put` since the attachment the states in the block have been read."""
        ...

    def put(self, commands: Commands) -> None:
        """Hand over records, in order. Neither waits nor raises."""
        ...

    def yield_gil(self, seconds: float) -> bool:
        """Let the proposers' thread begin with what was put, if it waited for it; returns whether it has begun.

        Waits up to `seconds`, but not for a thread that is at work. For the thread that puts.
        """
        ...

    def follow(self, values: Sequence[EnqueueRequest], outcome: DevicePassResult, seconds: float) -> EnqueuedRound:
        """Have the device draft behind a pass under way, as far as the proposers can.

        Waits for their own thread, so many seconds at most, where that is taking in something else.
        For the thread that puts. The trees are there for the target's next pass alone, and answer the commits that tell
        of this one, if those ask for trees.
        """
        ...

    def begin(self) -> bool:
        """Begin to draft with what was put, on the calling thread, which is that of `put`; waits for nothing.

        False where the proposers are called by their own thread alone, or by it just now; then `yield_gil` is due.
        """
        ...

    def finish(self, seconds: float, *, unread: bool = False) -> Replies | None:
        """What answers that, which the calling thread waits for that long at most: `Answer` is not called for it.

        With `unread`, trees may be `DeviceTree`s, which are not waited for.
        None where it is not there, nothing was begun, or the proposers' own thread went on with it and answers.
        """
        ...

    def detach(self) -> None:
        """End the exchange. Neither waits nor raises."""
        ...

    def stop(self, seconds: float) -> None:
        """Shut the proposers down; those that take longer are left to their fate."""
        ...


class HostLimits(NamedTuple):
    """CPU threads of the proposers, and the operator's limits of their trees: None where a proposer chooses.

    `max_nodes` counts the root, `top_k` the children of a node. `device` is where they compute, `cpu` or `cuda:N`.
    `target` is the folder of the model that is served; proposers that read states are tried with those of its layers
    above and below, unless its weights take more MiB than `boundary_check_mib`.
    """

    threads: int = 1
    max_nodes: int | None = None
    max_depth: int | None = None
    top_k: int | None = None
    device: str = "cpu"
    target: str = ""
    boundary_check_mib: int = 0


class HostFactory(Protocol):
    """Loads proposers, each written NAME[:ARGUMENT] or NAME=module:factory[:ARGUMENT].

    Raises SlipstreamError (slipstream.rpc.errors) for unknown proposers and wrong arguments.
    """

    def __call__(self, specs: Sequence[str], limits: HostLimits) -> ProposerHost: ...
