"""LoRA adapters come and go between steps: asked for by any thread, done by the loop's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from verify_service.core.adapters import Adapter, AdapterList, AdapterState, LoadedAdapters
from verify_service.core.request_state import RequestState
from verify_service.model_runner.base import ModelRunner


@dataclass(frozen=True, slots=True, eq=False)
class InstallAdapter:
    """Put packed weights into the slot of an adapter, which requests may name then."""

    adapter: Adapter
    packed: Any
    done: Future[None]


@dataclass(frozen=True, slots=True, eq=False)
class RemoveAdapter:
    """Refuse requests that name an adapter, and free its slot once no other uses it."""

    name: str
    done: Future[None]


AdapterCommand = InstallAdapter | RemoveAdapter

INSTALL_SECONDS = 60.0
"""How long the loop may take until it gets to an adapter: no step takes so long."""


class AdapterHost:
    """`loaded` is what requests may name; `on_change` is told of it by the loop's thread when it changes.

    Slots are given to weights before these are packed.
    """

    def __init__(self, engine: ModelRunner[Any], put: Callable[[AdapterCommand], None], slots: int) -> None:
        self.loaded = LoadedAdapters()
        self.num_slots = slots
        self.on_change: Callable[[AdapterList], None] = lambda loaded: None
        self._engine = engine
        self._put = put
        self._lock = threading.Lock()
        self._free = list(range(slots))
        self._taken: set[str] = set()  # names of adapters that have a slot, or are about to
        self._waiting: dict[str, list[Future[None]]] = {}

    def install(self, name: str, path: str, read: Callable[[], tuple[str, LoraAdapter]]) -> Adapter:
        """Read, pack and install an adapter, which `read` gives with its id; blocks for as long as that takes.

        For any thread but the loop's. Raises InvalidArgumentError for a name in use, ResourceExhaustedError where all
        slots are taken, UnavailableError where the loop does not get to it, and what `read` raises.
        """
        slot = self._take(name)
        try:
            identity, weights = read()
            adapter = Adapter(name, identity, slot, weights.rank, path)
            command = InstallAdapter(adapter, self._engine.pack_adapter(weights, slot), Future())
            self._put(command)
            _await(command.done)
        except BaseException:
            self._give_back(name, slot)
            raise
        return adapter

    def remove(self, name: str) -> Future[None]:
        """Done once no request uses the adapter. The future raises NotFoundError where there is none of that name."""
        done: Future[None] = Future()
        self._put(RemoveAdapter(name, done))
        return done

    def obey(self, command: AdapterCommand) -> None:
        """Do what was asked for, or begin with it. By the loop's thread, between steps."""
        if not command.done.set_running_or_notify_cancel():
            return
        try:
            if isinstance(command, InstallAdapter):
                self._engine.install_adapter(command.adapter.slot, command.packed)
                self.loaded.add(command.adapter)
                self.on_change(self.loaded.listed)
                command.done.set_result(None)
            else:
                adapter = self.loaded.retire(command.name)
                self.on_change(self.loaded.listed)
                self._waiting[adapter.id] = [command.done]
        except Exception as error:  # noqa: BLE001 - who asked is told, and the loop goes on
            command.done.set_exception(error)

    def states(self, requests: Iterable[RequestState]) -> tuple[AdapterState, ...]:
        """What adapters are used for by these requests, which are all that there are. By the loop's thread."""
        return self.loaded.states((state.request.adapter_id, state.kv.req_index >= 0) for state in requests)

    def free_unused(self, states: Iterable[RequestState]) -> None:
        """Let go of adapters that are to go and that no request of `states` uses. By the loop's thread."""
        if not self.loaded.leaving:
            return
        used = {state.request.adapter_id for state in states}
        for adapter in [each for each in self.loaded.leaving if each.id not in used]:
            self._engine.remove_adapter(adapter.slot)
            self.loaded.forget(adapter)
            self._give_back(adapter.name, adapter.slot)
            for done in self._waiting.pop(adapter.id):
                done.set_result(None)

    def close(self) -> None:
        """Answer who waits still: the loop ends."""
        for waiting in self._waiting.values():
            for done in waiting:
                done.set_exception(UnavailableError("the service stops"))

    def _take(self, name: str) -> int:
        with self._lock:
            if not self.num_slots:
                raise FailedPreconditionError("the service was started without room for adapters: see --max-loras")
            if name in self._taken:
                raise InvalidArgumentError(f"an adapter {name!r} is loaded, or about to be, or to go", field="name")
            if not self._free:
                raise ResourceExhaustedError(f"{self.num_slots} adapters are loaded, which is the limit (--max-loras)")
            self._taken.add(name)
            return self._free.pop(0)

    def _give_back(self, name: str, slot: int) -> None:
        with self._lock:
            self._taken.discard(name)
            self._free.append(slot)


def _await(done: Future[None]) -> None:
    """Wait for the loop, but not for one that has ended."""
    try:
        done.result(INSTALL_SECONDS)
    except TimeoutError:
        if done.cancel():
            raise UnavailableError("no step ended in time to take the adapter in") from None
        done.result()
