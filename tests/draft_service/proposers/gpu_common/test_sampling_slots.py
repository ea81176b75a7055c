"""Rules over the target's ids, written over a draft's vocabulary."""

import numpy as np
import torch

from draft_service.proposers.base import Sampling
from draft_service.proposers.gpu_common.sampling_slots import (
    DraftVocabulary,
    count_output,
    is_filtered,
    is_penalised,
    set_rules,
)
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.ops.gpu import sampling_table as table

IDS = torch.tensor([3, 5, 9, 40])


def test_the_targets_ids_become_the_drafts():
    vocabulary = DraftVocabulary(IDS, 4)
    assert vocabulary.draft_ids([9, 4, 3, 90, 40, 9]).tolist() == [2, 0, 3, 2]
    assert vocabulary.draft_pairs([(5, 1.5), (6, 2.0)]) == [(1, 1.5)]
    assert DraftVocabulary(None, 6).draft_ids([5, 6, 0]).tolist() == [5, 0]


def test_what_makes_a_round_filtered_or_counted():
    assert not is_filtered(Sampling(temperature=0.0, top_k=5, top_p=0.5))
    assert [is_filtered(Sampling(**rule)) for rule in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1})] == [
        False, True, True, True,
    ]  # fmt: skip
    rules = ({}, {"repetition_penalty": 1.1}, {"presence_penalty": 1.0})
    assert [is_penalised(Sampling(**rule)) for rule in rules] == [False, True, True]


def test_rules_are_written_by_draft_id():
    tables = RequestTables(GpuLimits(max_running=2, max_context=32, num_pages=4), 4, "cpu")
    sampling = Sampling(
        temperature=0.5, seed=7, presence_penalty=1.0, logit_bias={9: -2.0, 8: 1.0}, min_tokens=6, stop_token_ids=(40,)
    )
    set_rules(tables, 1, DraftVocabulary(IDS, 4), sampling, [5, 6, 3, 3, 8], 2, (9,))
    tables.take_changes(0)
    line = tables.sampling.params[1].numpy()
    assert line.view(np.float32)[table.TEMPERATURE] == 0.5
    assert line[table.FLAGS] == table.HAS_PENALTIES | table.HAS_BIAS | table.HAS_MIN_TOKENS
    assert line[table.MIN_POSITION] == 8
    assert tables.sampling.bias[1].tolist() == [0, 0, -2, 0]
    assert tables.sampling.token_flags[1].tolist() == [0, table.IN_PROMPT, table.ENDS_OUTPUT, table.ENDS_OUTPUT]
    assert tables.sampling.output_counts[1].tolist() == [2, 0, 0, 0]
    count_output(tables, 1, DraftVocabulary(IDS, 4), [40, 3, 7, 40])
    assert tables.sampling.output_counts.tolist() == [[0, 0, 0, 0], [3, 0, 0, 2]]
