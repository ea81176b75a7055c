"""Tokens decided at tree nodes follow the exact distribution: chi-square over three consecutive ones."""

import queue
import time
from collections import Counter

import numpy as np
import pytest

from benchmarks.distribution.exact_law import (
    Law,
    chi_square,
    conditionals,
    joint,
    reference_logits,
    write_tiny_vocabulary_model,
)
from slipstream.generation_types import SpeculationOptions
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import VerifyLoop

SEEDS = 2_000
LAW = Law(temperature=0.7, top_p=0.9, presence_penalty=0.5)
PROMPT = (2, 5, 3, 7, 4, 6, 2, 2, 3)
FIRST, RUN = 2, 3  # output 0 is decided by the prompt's last row, output 1 by a root, 2 to 4 by nodes


class LikelyTrees(NoDrafts):
    """Proposes the 63 likeliest paths of the exact law, one in eight of their nodes left out."""

    def __init__(self, table):
        self.table = table
        self.trees = {}
        self.outputs = {}
        self.wanted = {}

    def known(self, name):
        return True

    def default(self):
        return "likely"

    def begin(self, opening):
        self.outputs[opening.key] = ()
        return True

    def commit(self, commits):
        for each in commits:
            self.outputs[each.key] += each.token_ids
            self.wanted[each.key] = each
        return ()

    def collect(self, wanted):
        return [self.tree(self.outputs[key], self.wanted[key]) for key in wanted]

    def expects(self, keys):
        return True

    def end(self, key, reason, verified=()):
        self.outputs.pop(key, None)
        self.wanted.pop(key, None)

    def tree(self, output, wanted):
        limits = (output, wanted.max_nodes, wanted.max_depth)
        if limits not in self.trees:
            self.trees[limits] = self.likeliest(*limits)
        return self.trees[limits]

    def likeliest(self, output, max_nodes, max_depth):
        omit = np.random.default_rng([len(output), *output])
        open_paths = [(-1.0, (), -1)]
        tokens, parents = [], []
        while open_paths and len(tokens) < max_nodes - 1:
            weight, path, node = open_paths.pop(0)
            law = self.table.get(output + path)
            if law is None or len(path) == max_depth:
                continue
            for token in np.flatnonzero(law):
                if len(tokens) < max_nodes - 1 and omit.random() > 1 / 8:
                    tokens.append(int(token))
                    parents.append(node)
                    open_paths.append((weight * law[token], (*path, int(token)), len(tokens) - 1))
            open_paths.sort()
        return TokenTree(tuple(tokens), tuple(parents)) if tokens else None


@pytest.mark.filterwarnings("default")  # transformers deprecates its own calls
def test_joint_of_three_tokens_decided_at_nodes(tmp_path):
    folder = write_tiny_vocabulary_model(tmp_path / "model")
    table = conditionals(reference_logits(folder), PROMPT, LAW, FIRST + RUN)
    outputs = queue.SimpleQueue()
    loop = VerifyLoop(
        CausalLM.load(folder, threads=2),
        EngineConfig(num_pages=512, max_queued=SEEDS, step_nodes=4096),
        LikelyTrees(table),
        Sink(outputs.put),
    )
    tokens = {}
    at_nodes = Counter()
    drafted = SpeculationOptions(enabled=True)
    loop.start()
    try:
        for seed in range(SEEDS):
            sampling = SamplingParams(
                temperature=LAW.temperature,
                top_p=LAW.top_p,
                presence_penalty=LAW.presence_penalty,
                seed=seed,
                max_tokens=FIRST + RUN,
                ignore_eos=True,
            )
            loop.submit(
                GenerationRequest(RequestKey(1, seed), PROMPT, time.monotonic(), sampling=sampling, speculation=drafted)
            )
        finished = 0
        while finished < SEEDS:
            for output in outputs.get(timeout=60):
                seed = output.key.request_id
                before = tokens.get(seed, ())
                tokens[seed] = before + output.token_ids
                accepted = output.step.accepted if output.step else 0
                # Of a step's tokens the first is decided at the root, the others at accepted nodes.
                at_nodes[seed] += len(
                    set(range(len(before) + 1, len(before) + 1 + accepted)) & {FIRST, FIRST + 1, FIRST + 2}
                )
                finished += output.finish_reason is not None
                assert output.error is None
    finally:
        loop.stop()

    result = chi_square(Counter(run[FIRST:] for run in tokens.values()), joint(table, FIRST, RUN))
    share = sum(count == RUN for count in at_nodes.values()) / SEEDS
    print(f"{result}, all three at nodes: {share:.1%}")
    assert all(len(run) == FIRST + RUN for run in tokens.values())
    assert share > 0.4
    assert result.impossible == 0
    assert result.p_value > 1e-3
