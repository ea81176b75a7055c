"""Readiness that waits for drafters: what it waits for, for how long, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from gateway.drafters.missing_proposers import latest_info, unattached_proposers
from gateway.replicas.verify_client import VerifyClient

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""Between looks at what is attached."""


class DrafterWait:
    """Waits until the proposers are attached that the verify services are configured with.

    A proposer that is refused is not waited for. The wait ends for good when all others are attached, or when a verify
    service has served for `seconds`, before this process or in it; 0: there is none. Requests are taken meanwhile, and
    those for a proposer that is not attached are decoded plainly.
    """

    __slots__ = ("_client", "_over", "_seconds", "_task")

    def __init__(self, client: VerifyClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds
        self._over = not seconds
        self._task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether readiness waits no more."""
        return self._over

    def start(self) -> None:
        """Look on in the background, from when a verify service is ready."""
        self._task = asyncio.create_task(self._run(), name="drafter wait")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            missing = await self._wait()
        finally:  # whatever goes wrong here, requests can be answered
            self._over = True
        if missing:
            level = logging.WARNING if self._seconds else logging.INFO
            _log.log(level, "not attached, their requests are decoded plainly until they are: proposers %s", missing)

    async def _wait(self) -> str:
        """The names of the proposers that are not attached at the end of the wait."""
        begun = 0.0
        while True:
            replicas = [replica for replica in self._client.replicas if replica.ready]
            infos = [info for info in await asyncio.gather(*map(latest_info, replicas)) if info is not None]
            if infos:
                missing = ", ".join(dict.fromkeys(name for info in infos for name in unattached_proposers(info)))
                is_first, begun = not begun, begun or time.monotonic()
                # Verify services of older builds do not say for how long they have served.
                left = self._seconds - max(time.monotonic() - begun, *(info.serving_seconds for info in infos))
                if not missing or left <= 0:
                    return missing
                if is_first:
                    _log.info("waiting up to %.0f s for proposers to be attached: %s", left, missing)
            await asyncio.sleep(POLL_SECONDS)
