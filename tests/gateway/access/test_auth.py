from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.auth import ApiKeys
from slipstream.rpc.errors import InvalidArgumentError, UnauthenticatedError


def test_without_keys_everyone_is_let_in() -> None:
    assert ApiKeys.from_file(None).tenant_of([]) is None


def test_a_key_stands_for_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\n"sk-1" = "red"\n"sk-2" = "blue"\n', "utf-8")
    keys = ApiKeys.from_file(file)
    assert keys.required
    assert keys.tenant_of(["Bearer sk-1"]) == "red"
    assert keys.tenant_of(["bearer sk-2"]) == "blue"


@pytest.mark.parametrize("header", [None, "", "sk-1", "Basic sk-1", "Bearer", "Bearer sk-3", "Bearer sk-\udc80"])
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(UnauthenticatedError):
        ApiKeys({"sk-1": "red"}).tenant_of([] if header is None else [header])


@pytest.mark.parametrize("keys", [{}, {"sk-1": "red"}])
def test_two_entries_are_refused_with_and_without_keys(keys: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError, match="authorization is given twice"):
        ApiKeys(keys).tenant_of(["Bearer sk-1", "Bearer sk-1"])


@pytest.mark.parametrize("text", ["", "[keys]", "keys = 3", "[keys]\na = 1"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidArgumentError, match="needs a"):
        ApiKeys.from_file(file)


def keys_of(folder: Path, tables: str) -> ApiKeys:
    file = folder / "keys.toml"
    file.write_text(f'[keys]\n"sk-1" = "red"\n"sk-2" = "blue"\n{tables}', "utf-8")
    return ApiKeys.from_file(file)


def test_tenants_have_weights_beside_their_keys(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "[tenants.red]\nweight = 2.5\n[tenants.blue]\n")
    assert [keys.weight_of(tenant) for tenant in ("red", "blue", "unknown")] == [2.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ("[tenants.red]\nweight = 0", r"\[tenants.red\]: weight must be a number from 0.01 to 100, got 0"),
        ("[tenants.red]\nweight = nan", r"\[tenants.red\]: weight must be"),
        ("[tenants.red]\nweight = true", r"\[tenants.red\]: weight must be"),
        ('[tenants.red]\nweight = "2"', r"\[tenants.red\]: weight must be"),
        ("[tenants.red]\nwieght = 2", r"\[tenants.red\] has wieght"),
        ("[tenants.green]\nweight = 2", r"\[tenants.green\]: no key belongs"),
        ("[tenants]\nred = 2", r"\[tenants.red\] is no table"),
    ],
)
def test_a_wrong_weight_is_refused_by_name(tmp_path: Path, tables: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        keys_of(tmp_path, tables)
