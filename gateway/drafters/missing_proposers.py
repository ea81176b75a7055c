"""Proposers that requests may ask for and that draft nothing: tokens come without them, and /ready says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from gateway.core.request import VerifyInfo
from gateway.openai.types import MissingProposer
from gateway.replicas.replica import Replica
from slipstream.rpc.errors import SlipstreamError

ANSWER_SECONDS: Final = 0.5
"""How long a verify service may take to say what it has now; else what it said last counts."""
NOT_ATTACHED: Final = "no draft service that offers it is attached; until one is, its requests are decoded plainly"


async def missing_proposers(replicas: Iterable[Replica]) -> list[MissingProposer]:
    """Those of all these verify services, with the reasons."""
    asked = [replica for replica in replicas if replica.info is not None]
    answers = await asyncio.gather(*map(latest_info, asked))
    return [
        {"proposer": name, "verify_service": replica.address, "reason": reason}
        for replica, info in zip(asked, answers, strict=True)
        for name, reason in ({} if info is None else _missing(info)).items()
    ]


async def latest_info(replica: Replica) -> VerifyInfo | None:
    """What a verify service says of itself now, or said last; None if it said nothing in this session."""
    try:
        return await asyncio.wait_for(replica.fetch_info(), ANSWER_SECONDS)
    except (SlipstreamError, TimeoutError):
        return replica.info


def unattached_proposers(info: VerifyInfo) -> list[str]:
    """Configured proposers that may still draft: not refused, and not attached yet, or verify prepares for them."""
    refused = {refusal.proposer for refusal in info.refusals}
    return [each.name for each in info.proposers if each.preparing or (not each.attached and each.name not in refused)]


def _missing(info: VerifyInfo) -> dict[str, str]:
    """Why, by name: configured proposers that are not attached, and such as draft services have and cannot offer."""
    attached = {proposer.name for proposer in info.proposers if proposer.attached}
    refused = {refusal.proposer: refusal.reason for refusal in info.refusals}
    names = (*(proposer.name for proposer in info.proposers), *refused)
    return {name: refused.get(name, NOT_ATTACHED) for name in dict.fromkeys(names) if name not in attached}
