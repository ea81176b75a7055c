"""Which adapters requests may name, and what is counted of those that do."""

from __future__ import annotations

import pytest

from slipstream.rpc.errors import FailedPreconditionError, NotFoundError
from verify_service.core.adapters import Adapter, AdapterState, LoadedAdapters

RED, BLUE = Adapter("red", "red@1", 0, 8, "/red"), Adapter("blue", "blue@2", 1, 16, "/blue")


def test_an_adapter_is_named_by_name_and_by_id() -> None:
    loaded = LoadedAdapters()
    loaded.add(RED)
    assert (loaded.named(""), loaded.named("red"), loaded.named("red@1")) == (None, RED, RED)
    with pytest.raises(FailedPreconditionError, match="other weights"):
        loaded.named("red@2")
    with pytest.raises(NotFoundError, match="loaded: 'red'"):
        loaded.named("blue")


def test_each_change_is_another_version_of_the_list() -> None:
    loaded = LoadedAdapters()
    loaded.add(RED)
    loaded.add(BLUE)
    assert (loaded.listed.version, loaded.listed.adapters) == (2, (RED, BLUE))
    assert loaded.retire("red") == RED and list(loaded.leaving) == [RED]
    assert (loaded.listed.version, loaded.listed.adapters) == (3, (BLUE,))
    with pytest.raises(NotFoundError, match="no adapter 'red' is loaded"):
        loaded.retire("red")


def test_requests_are_counted_by_adapter_until_it_has_gone() -> None:
    loaded = LoadedAdapters()
    assert loaded.states([("", True)]) == ()
    loaded.add(RED)
    loaded.add(BLUE)
    for each in (RED, RED, BLUE):
        loaded.count(each)
    loaded.retire("red")
    states = loaded.states([("red@1", True), ("red@1", False), ("", True), ("blue@2", True)])
    assert states == (AdapterState(BLUE, False, 1, 0, 1), AdapterState(RED, True, 1, 1, 2))
    loaded.forget(RED)
    loaded.add(RED)
    assert loaded.states([]) == (AdapterState(BLUE, False, 0, 0, 1), AdapterState(RED, False, 0, 0, 0))
