"""What a verify service's metrics are read from, each figure another one."""

from __future__ import annotations

from slipstream.generation_types import SourceCount
from verify_service.draft_link.draft_stats import DraftStats
from verify_service.draft_link.link_config import DrafterState
from verify_service.draft_link.records import Mode
from verify_service.engine.loop_stats import LoopState

LOOP = LoopState(
    running=2,
    queued=3,
    pages_total=10,
    pages_free=4,
    pages_cached=1,
    steps=7,
    committed_tokens=30,
    drafted_tokens=20,
    accepted_tokens=11,
    preemptions=1,
    prefix_hit_tokens=16,
    draining=False,
)
SOURCES = {"a": SourceCount("a", 25, 20), "b": SourceCount("b", 15, 10)}
TALLY = DraftStats(1, 2, 3, 40, 30, waits=6, partial_sessions=10, sources=SOURCES)
DRAFTER = DrafterState(77, "d", "host:1", 5, "shm", Mode.AHEAD, "ngram", 9, 0.5, 8, 7, TALLY, 0.06, 0.09)
