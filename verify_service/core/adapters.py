"""The LoRA adapters that requests may name, as the verify loop knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from slipstream.adapter_names import adapter_name
from slipstream.rpc.errors import FailedPreconditionError, NotFoundError


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter with weights in `slot` of the model. `id` is its name and what its content hashes to."""

    name: str
    id: str
    slot: int
    rank: int
    path: str


@dataclass(frozen=True, slots=True)
class AdapterList:
    """Adapters that new requests may name, by age. `version` grows with each change."""

    version: int = 0
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterState:
    """What an adapter is used for at a moment."""

    adapter: Adapter
    leaving: bool
    """Whether it is to go, so that new requests may not name it."""
    running: int
    waiting: int
    requests: int
    """Admitted since it was loaded."""


class LoadedAdapters:
    """By name. Written by the loop's thread; `listed` may be read by any."""

    def __init__(self) -> None:
        self._loaded: dict[str, Adapter] = {}
        self._leaving: dict[str, Adapter] = {}
        self._admitted: dict[str, int] = {}  # by id
        self.listed = AdapterList()

    @property
    def leaving(self) -> Collection[Adapter]:
        """Those that are to go once no request uses them."""
        return self._leaving.values()

    def add(self, adapter: Adapter) -> None:
        """From now on requests may name it."""
        assert adapter.name not in self._loaded, "names are checked before weights are read"
        self._loaded[adapter.name] = adapter
        self._admitted[adapter.id] = 0
        self._list()

    def retire(self, name: str) -> Adapter:
        """No request may name it from now on. Raises NotFoundError."""
        adapter = self._loaded.pop(name, None)
        if adapter is None:
            raise NotFoundError(f"no adapter {name!r} is loaded", field="name")
        self._leaving[adapter.id] = adapter
        self._list()
        return adapter

    def forget(self, adapter: Adapter) -> None:
        """Its slot is free."""
        del self._leaving[adapter.id]
        self._admitted.pop(adapter.id, None)

    def count(self, adapter: Adapter) -> None:
        """A request that uses it was admitted."""
        self._admitted[adapter.id] += 1

    def states(self, uses: Iterable[tuple[str, bool]]) -> tuple[AdapterState, ...]:
        """By age, those that are to go last. `uses`: the adapter's id, or "", of each request, and whether it runs."""
        if not (self._loaded or self._leaving):
            return ()
        counts = Counter(uses)
        return tuple(
            AdapterState(each, leaving, counts[each.id, True], counts[each.id, False], self._admitted[each.id])
            for leaving, adapters in ((False, self._loaded), (True, self._leaving))
            for each in adapters.values()
        )

    def _list(self) -> None:
        self.listed = AdapterList(self.listed.version + 1, tuple(self._loaded.values()))

    def named(self, wanted: str) -> Adapter | None:
        """The adapter of a name or an id; None where both are empty: the model alone.

        Raises NotFoundError where none is loaded, FailedPreconditionError where its content is another than an id's.
        """
        if not wanted:
            return None
        name = adapter_name(wanted)
        adapter = self._loaded.get(name)
        if adapter is None:
            known = ", ".join(map(repr, self._loaded)) or "none"
            raise NotFoundError(f"no adapter {name[:80]!r} is loaded; loaded: {known}", field="adapter_id")
        if wanted not in (adapter.name, adapter.id):
            raise FailedPreconditionError(
                f"adapter {name!r} holds other weights than the {wanted[:200]!r} that was asked for", field="adapter_id"
            )
        return adapter
