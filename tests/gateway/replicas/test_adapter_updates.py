"""Adapters are loaded by all services or by none, and once more by those that come back without them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.request import ServedAdapter, VerifyInfo
from gateway.replicas.adapter_updates import AdapterUpdates
from slipstream.rpc.errors import InvalidArgumentError, NotFoundError, SlipstreamError, UnavailableError

INFO = VerifyInfo("tiny", "f", 512, 512, 64, 8, frozenset({2}), (), "")


class Service:
    """What updates see of a replica."""

    def __init__(self, error: SlipstreamError | None = None) -> None:
        self.address = "here"
        self.info = INFO
        self.error = error

    async def load_adapter(self, name: str, path: str) -> ServedAdapter:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        adapter = ServedAdapter(name, f"{name}@{path}", 8)
        self.info = replace(self.info, adapters=(*self.info.adapters, adapter))
        return adapter

    async def unload_adapter(self, name: str) -> None:
        self.info = replace(self.info, adapters=tuple(each for each in self.info.adapters if each.name != name))

    async def fetch_info(self) -> VerifyInfo:
        return self.info


def names(services: list[Any]) -> list[list[str]]:
    return [[adapter.name for adapter in each.info.adapters] for each in services]


def test_all_services_load_and_let_go() -> None:
    updates, services = AdapterUpdates(), [Service(), Service()]
    assert asyncio.run(updates.load(services, "a", "p")) == ServedAdapter("a", "a@p", 8)  # type: ignore[arg-type]
    assert (names(services), updates.wanted) == ([["a"], ["a"]], {"a": "p"})
    asyncio.run(updates.unload(services, "a"))  # type: ignore[arg-type]
    assert (names(services), updates.wanted) == ([[], []], {})
    with pytest.raises(NotFoundError, match="no adapter 'a' is loaded"):
        asyncio.run(updates.unload(services, "a"))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        asyncio.run(updates.load([], "a", "p"))


def test_where_one_cannot_none_does() -> None:
    updates, services = AdapterUpdates(), [Service(), Service(InvalidArgumentError("a rank of 64", field="path"))]
    with pytest.raises(InvalidArgumentError, match="a rank of 64"):
        asyncio.run(updates.load(services, "a", "p"))  # type: ignore[arg-type]
    assert (names(services), updates.wanted) == ([[], []], {})


def test_a_service_that_comes_back_is_brought_up() -> None:
    updates, first, later = AdapterUpdates(), Service(), Service()
    for name in ("a", "b"):
        asyncio.run(updates.load([first], name, "p"))  # type: ignore[list-item]
    later.info = replace(INFO, adapters=(ServedAdapter("a", "a@p", 8),))
    info = asyncio.run(updates.bring_up(later, later.info))  # type: ignore[arg-type]
    assert [adapter.name for adapter in info.adapters] == ["a", "b"]
    broken = Service(UnavailableError("gone"))
    assert asyncio.run(updates.bring_up(broken, INFO)).adapters == ()  # type: ignore[arg-type]


def test_what_another_gateway_has_unloaded_is_not_loaded_again() -> None:
    updates, services = AdapterUpdates(), [Service(), Service()]
    for name in ("a", "b"):
        asyncio.run(updates.load(services, name, "p"))  # type: ignore[arg-type]
    asyncio.run(services[0].unload_adapter("a"))  # at one service after the other
    updates.note_gone(["a"], services)  # type: ignore[arg-type]
    assert updates.wanted == {"a": "p", "b": "p"}
    asyncio.run(services[1].unload_adapter("a"))
    updates.note_gone(["a"], services)  # type: ignore[arg-type]
    assert updates.wanted == {"b": "p"}
    back = Service()
    assert [each.name for each in asyncio.run(updates.bring_up(back, INFO)).adapters] == ["b"]  # type: ignore[arg-type]


def test_what_any_service_has_can_be_asked_for() -> None:
    updates = AdapterUpdates()
    a, b, other = (ServedAdapter(name, f"{name}@{digest}", 8) for name, digest in (("a", "1"), ("b", "1"), ("a", "2")))
    infos = [replace(INFO, adapters=(a,)), replace(INFO, adapters=(other, b), max_context=9)]
    merged = updates.merged(infos)
    assert (merged.adapter("a"), merged.adapter("b"), merged.max_context) == (a, b, 512)
    assert updates.merged(infos) is merged  # so that workers are not told anew
    assert updates.merged(infos[:1]) is infos[0]
