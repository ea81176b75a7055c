"""API keys: who may call, as which tenant, and how much of the service is the tenant's."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.rpc.errors import InvalidArgumentError, UnauthenticatedError

LEAST_WEIGHT: Final = 0.01
MOST_WEIGHT: Final = 100.0


class ApiKeys:
    """Bearer tokens of tenants, and tenants' weights. Without keys everyone is let in, as the tenant they state."""

    __slots__ = ("_tenants", "_weights")

    def __init__(self, keys: Mapping[str, str], weights: Mapping[str, float] | None = None) -> None:
        self._tenants = {hashlib.sha256(key.encode("utf-8")).digest(): tenant for key, tenant in keys.items()}
        self._weights = dict(weights or {})

    @classmethod
    def from_file(cls, file: Path | None) -> ApiKeys:
        """Read the [keys] table of a TOML file, and the [tenants.NAME] tables beside it.

        InvalidArgumentError if there are no keys, or naming the tenant whose table is wrong.
        """
        if file is None:
            return cls({})
        content = tomllib.loads(file.read_text("utf-8"))
        keys = content.get("keys")
        if not isinstance(keys, dict) or not keys or not all(isinstance(tenant, str) for tenant in keys.values()):
            raise InvalidArgumentError(f"{file} needs a [keys] table of API key = tenant", field="api_keys_file")
        tenants = content.get("tenants", {})
        if not isinstance(tenants, dict):
            raise InvalidArgumentError(f"{file}: tenants must be tables [tenants.NAME]", field="api_keys_file")
        known = set(keys.values())
        return cls(keys, {name: _weight(file, name, table, known) for name, table in tenants.items()})

    @property
    def required(self) -> bool:
        """Whether callers need a key."""
        return bool(self._tenants)

    def weight_of(self, tenant: str) -> float:
        """By which a tenant shares the service with others; 1 unless its table says otherwise."""
        return self._weights.get(tenant, 1.0)

    def tenant_of(self, authorization: Sequence[str]) -> str | None:
        """The tenant of a request's "authorization: Bearer KEY" entries; None where no keys are configured.

        Compares with every key in constant time. UnauthenticatedError without a known key, and for several entries:
        a proxy and this server could each go by another one.
        """
        if len(authorization) > 1:
            raise UnauthenticatedError("authorization is given twice: send one key")
        if not self._tenants:
            return None
        scheme, _, key = (authorization[0] if authorization else "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthenticatedError("an API key is needed: send it as `Authorization: Bearer KEY`")
        given = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found: str | None = None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise UnauthenticatedError("unknown API key")
        return found


def _weight(file: Path, name: str, table: Any, known: set[str]) -> float:
    where = f"{file}: [tenants.{name}]"
    if name not in known:
        raise InvalidArgumentError(f"{where}: no key belongs to this tenant", field="api_keys_file")
    if not isinstance(table, dict) or (unknown := sorted(set(table) - {"weight"})):
        found = f"has {', '.join(unknown)}" if isinstance(table, dict) else "is no table"
        raise InvalidArgumentError(f"{where} {found}; it may have weight alone", field="api_keys_file")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidArgumentError(
            f"{where}: weight must be a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, got {weight!r}",
            field="api_keys_file",
        )
    return float(weight)
