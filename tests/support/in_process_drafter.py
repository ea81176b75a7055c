"""A verify loop over a device's twins, with a drafter in the process that drafts behind its passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from draft_service.in_process import InProcessHost
from support.answering_drafter import HIDDEN, ROWS, VOCAB, Drafter
from support.verify_loop import LoopRunner, OnHost, Target
from verify_service.core.engine_config import EngineConfig
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host

DEADLINE = 30.0
"""How many seconds steps wait for trees at most."""
CONFIG = EngineConfig(
    num_pages=100, max_running=4, prefill_chunk=64, step_nodes=20, max_nodes=ROWS, max_context=512, adaptive=False
)


class Served(NamedTuple):
    runner: LoopRunner
    link: DraftLink
    host: InProcessHost
    attachment: Attachment


@contextmanager
def served(twins: Target, drafter: Drafter, *, follows: bool = True, config: EngineConfig = CONFIG) -> Iterator[Served]:
    """At the end no session is left."""
    facts = LinkFacts("m", "", VOCAB, HIDDEN, 2, 512, ROWS, feature_boundaries=(0, 1, 2, 3), most_boundaries=3)
    link = DraftLink(facts, LinkConfig(deadline=DEADLINE))
    host = InProcessHost([drafter])
    attachment = attach_host(link, host, device="cpu:0", max_step_rows=100)
    runner = LoopRunner(twins, config, link if follows else OnHost(link))
    runner.loop.start()
    try:
        yield Served(runner, link, host, attachment)
    finally:
        runner.loop.stop()
        link.close()
        host.stop(30.0)
    assert not drafter.texts
