from __future__ import annotations

import pytest

from slipstream.adapter_names import adapted_fingerprint, adapter_id, adapter_name, check_adapter_name
from slipstream.rpc.errors import InvalidArgumentError


def test_ids_hold_name_and_content() -> None:
    identity = adapter_id("org/sql-v2", "ab" * 32)
    assert identity == "org/sql-v2@" + "ab" * 16
    assert adapter_name(identity) == adapter_name("org/sql-v2") == "org/sql-v2"


@pytest.mark.parametrize("name", ["a", "A1._:/-", "x" * 128])
def test_names(name: str) -> None:
    assert check_adapter_name(name, "name") == name


@pytest.mark.parametrize("name", ["", " a", "a b", "-a", "a@b", "a\n", "é", "x" * 129])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="lora_name is") as refused:
        check_adapter_name(name, "lora_name")
    assert refused.value.field == "lora_name"


def test_fingerprints_follow_the_content_alone() -> None:
    one, other = adapter_id("a", "1" * 64), adapter_id("a", "2" * 64)
    assert adapted_fingerprint("f", "") == "f"
    assert adapted_fingerprint("f", one) == adapted_fingerprint("f", adapter_id("b", "1" * 64))
    assert len({"f", adapted_fingerprint("f", one), adapted_fingerprint("f", other)}) == 3
