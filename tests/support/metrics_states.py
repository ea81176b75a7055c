"""What a verify service's metrics are read from, each figure another one."""

from __future__ import annotations

from slipstream.bucket_counts import BucketCounts
from slipstream.generation_types import SourceCount
from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.adapters import Adapter, AdapterState
from verify_service.core.expert_overlap import ExpertOverlap
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.draft_link.link_state import DrafterState
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.engine.loop_stats import LoopState

ROWS, SECONDS = BucketCounts((1, 2, 4)), BucketCounts((0.5, 1.0))
ROWS.observe(3)
SECONDS.observe(0.75)
EXPERTS = ExpertOverlap(ExpertForm(8, 2, 128, (True, True), normalised=True))
EXPERTS.observe(1, 0, [], 4)
EXPERTS.observe(1, 2, [TokenTree((1, 2), (-1, 0))], 7)
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
    prompt_tokens=14,
    step_rows=ROWS,
    step_seconds=SECONDS,
    grammar_seconds=GrammarSeconds(drafts=1.0, checks=2.0, masks=3.0),
    experts=EXPERTS,
    adapters=(
        AdapterState(Adapter("red", "red@1", 0, 8, "/red"), leaving=False, running=2, waiting=1, requests=9),
        AdapterState(Adapter("blue", "blue@2", 1, 16, "/blue"), leaving=True, running=1, waiting=0, requests=4),
    ),
)
SOURCES = {"a": SourceCount("a", 25, 20), "b": SourceCount("b", 15, 10)}
TALLY = DraftStats(1, 2, 3, 40, 30, waits=6, partial_sessions=10, handed=12, unmade=13, sources=SOURCES)
DRAFTER = DrafterState(77, "d", "host:1", 5, "shm", "ngram", 9, 0.5, 8, 7, TALLY, 0.06, 0.09)
