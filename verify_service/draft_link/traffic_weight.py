"""Which part of the requests a draft service gets, where several offer the same proposer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from verify_service.core.draft_source import RequestOpening
from verify_service.draft_link.attachment import Attachment

_TOKENS_READ = 1024


def routing_hash(opening: RequestOpening) -> float:
    """A number in [0, 1) that a request keeps, also when it is resumed.

    A hash of prompt, seed, choice, tenant and adapter.
    """
    prompt = opening.token_ids[: opening.prompt_length]
    digest = blake2b(digest_size=8)
    digest.update(array("Q", (len(prompt), opening.sampling.seed or 0, opening.choice_index)).tobytes())
    digest.update(array("Q", prompt[:_TOKENS_READ]).tobytes())
    digest.update(opening.tenant.encode())
    if opening.adapter_id:
        digest.update(b"\0" + opening.adapter_id.encode())
    return int.from_bytes(digest.digest(), "little") / 2**64


def pick_by_weight(attachments: Sequence[Attachment], number: float) -> Attachment | None:
    """The one that drafts for a request of this number; `attachments` offer its proposer, the newest first.

    From 0 on, each takes as much of the line to 1 as its share says; what is left over is the oldest one's.
    """
    end = 0.0
    for attachment in attachments:
        end += attachment.share
        if number < end:
            return attachment
    return attachments[-1] if attachments else None
