"""API keys: who may call, and as which tenant."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.rpc.errors import InvalidArgumentError, UnauthenticatedError


class ApiKeys:
    """Maps bearer tokens to tenants. Without keys everyone is let in, as the tenant they state."""

    __slots__ = ("_tenants",)

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._tenants = {hashlib.sha256(key.encode("utf-8")).digest(): tenant for key, tenant in keys.items()}

    @classmethod
    def from_file(cls, file: Path | None) -> ApiKeys:
        """Read the [keys] table of a TOML file. InvalidArgumentError if there is no such table or it is empty."""
        if file is None:
            return cls({})
        keys = tomllib.loads(file.read_text("utf-8")).get("keys")
        if not isinstance(keys, dict) or not keys or not all(isinstance(tenant, str) for tenant in keys.values()):
            raise InvalidArgumentError(f"{file} needs a [keys] table of API key = tenant", field="api_keys_file")
        return cls(keys)

    @property
    def required(self) -> bool:
        """Whether callers need a key."""
        return bool(self._tenants)

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
