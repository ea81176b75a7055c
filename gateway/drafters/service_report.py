"""What the verify services behind the gateway are, and what drafts for them, at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.core.request import ServiceState
from gateway.drafters.missing_proposers import ANSWER_SECONDS, latest_info
from gateway.openai.types import ServiceReport
from gateway.replicas.replica import Replica
from slipstream.rpc.errors import SlipstreamError


async def service_reports(replicas: Iterable[Replica]) -> list[ServiceReport]:
    """Of each of them; one that does not answer has no model and no drafters."""
    return list(await asyncio.gather(*map(_report, replicas)))


async def _report(replica: Replica) -> ServiceReport:
    info, state = await asyncio.gather(latest_info(replica), _state(replica))
    version, device, mode, *_ = (*info.build, "", "", "") if info is not None else ("", "", "")
    return {
        "address": replica.address,
        "ready": replica.ready,
        "model": None if info is None else info.model_name,
        "version": version,
        "device": device,
        "mode": mode,
        "serving_seconds": 0.0 if info is None else info.serving_seconds,
        "running": state.running,
        "queued": state.queued,
        "drafters": [
            {
                "name": each.name,
                "proposer": each.proposer,
                "epoch": each.epoch,
                "transport": each.transport,
                "requests": each.requests,
                "share": round(each.share, 4),
                "drafted_tokens": each.drafted_tokens,
                "accepted_tokens": each.accepted_tokens,
            }
            for each in state.drafters
        ],
    }


async def _state(replica: Replica) -> ServiceState:
    try:
        return await asyncio.wait_for(replica.fetch_state(), ANSWER_SECONDS)
    except (SlipstreamError, TimeoutError):
        return ServiceState()
