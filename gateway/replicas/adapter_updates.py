"""LoRA adapters that all verify services of the gateway are to load, or to let go of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.core.request import ServedAdapter, VerifyInfo
from gateway.replicas.replica import Replica
from slipstream.rpc.errors import NotFoundError, SlipstreamError, UnavailableError

_log = logging.getLogger(__name__)


class AdapterUpdates:
    """`wanted`: the folder of each adapter that was loaded here. Services that come back without it load it again,

    unless it was unloaded, here or by another gateway.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, str] = {}
        self._merged: tuple[tuple[VerifyInfo, ...], VerifyInfo] | None = None

    async def load(self, replicas: Sequence[Replica], name: str, path: str) -> ServedAdapter:
        """Have services load an adapter: all, or, where one cannot, none. Raises what that one says."""
        if not replicas:
            raise UnavailableError("no verify service is ready; retry later")
        results = await asyncio.gather(
            *(replica.load_adapter(name, path) for replica in replicas), return_exceptions=True
        )
        failures = [each for each in results if isinstance(each, BaseException)]
        if failures:
            done = [
                replica.unload_adapter(name)
                for replica, result in zip(replicas, results, strict=True)
                if not isinstance(result, BaseException)
            ]
            await asyncio.gather(*done, return_exceptions=True)
            raise failures[0]
        self.wanted[name] = path
        return next(each for each in results if isinstance(each, ServedAdapter))

    async def unload(self, replicas: Sequence[Replica], name: str) -> None:
        """Have services let go of an adapter, which they do once no request uses it.

        NotFoundError where none of them has it.
        """
        self.wanted.pop(name, None)
        holders = [replica for replica in replicas if replica.info is not None and replica.info.adapter(name)]
        if not holders:
            raise NotFoundError(f"no adapter {name[:200]!r} is loaded", field="name")
        results = await asyncio.gather(*(replica.unload_adapter(name) for replica in holders), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def note_gone(self, names: Iterable[str], replicas: Sequence[Replica]) -> None:
        """A service that goes on has let go of these. What none has any more was unloaded, by whomever."""
        for name in names:
            if not any(replica.info is not None and replica.info.adapter(name) for replica in replicas):
                self.wanted.pop(name, None)

    async def bring_up(self, replica: Replica, info: VerifyInfo) -> VerifyInfo:
        """What a service tells once it has loaded what it lacks of `wanted`; what it cannot is logged."""
        lacking = {name: path for name, path in self.wanted.items() if info.adapter(name) is None}
        for name, path in lacking.items():
            try:
                await replica.load_adapter(name, path)
            except SlipstreamError as error:
                _log.warning("verify service %s came back without adapter %s: %s", replica.address, name, error.message)
        return await replica.fetch_info() if lacking else info

    def merged(self, infos: Sequence[VerifyInfo]) -> VerifyInfo:
        """Facts of the first service, with the adapters of all; the same object for the same facts."""
        if all(each.adapters == infos[0].adapters for each in infos):
            return infos[0]
        key = tuple(infos)
        if self._merged is None or self._merged[0] != key:
            adapters = {each.name: each for info in reversed(infos) for each in info.adapters}
            self._merged = key, replace(infos[0], adapters=tuple(adapters.values()))
        return self._merged[1]
