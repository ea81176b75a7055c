"""Tokens decided at tree nodes follow the target's own distribution."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.plain_reference import PlainDecoder, kept_ids, processed
from support.verify_loop import ScriptedTrees, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

PROMPT = (40, 300, 41, 77)
PARAMS = SamplingParams(temperature=0.7, top_k=3, top_p=0.9, presence_penalty=0.6, max_tokens=4)
SEEDS = 3000
Path = tuple[int, ...]


def conditional(decoder: PlainDecoder, path: Path) -> dict[int, float]:
    """Exact probabilities of the next token after PROMPT and `path`."""
    raw = decoder.logits([*PROMPT, *path])
    x = processed(raw, PARAMS, list(PROMPT), list(path), ()) / np.float32(PARAMS.temperature)
    ids = kept_ids(x, PARAMS)
    mass = np.exp(x[ids].astype(np.float64) - x[ids].max())
    return dict(zip(ids.tolist(), (mass / mass.sum()).tolist(), strict=True))


class SupportTrees(ScriptedTrees):
    """Proposes every token that is possible after the root, three levels deep."""

    def __init__(self, supports: dict[Path, dict[int, float]]) -> None:
        super().__init__()
        self._supports = supports

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        start = tuple(self.tokens[key][len(PROMPT) :])
        token_ids: list[int] = []
        parents: list[int] = []
        level = [(start, -1)]
        for _ in range(depth):
            below: list[tuple[Path, int]] = []
            for path, parent in level:
                for token in self._supports[path]:
                    token_ids.append(token)
                    parents.append(parent)
                    below.append(((*path, token), len(token_ids) - 1))
            level = below
        assert len(token_ids) <= nodes
        return TokenTree(tuple(token_ids), tuple(parents))


def test_the_joint_of_four_tokens_is_exact(model: CausalLM) -> None:
    decoder = PlainDecoder(model)
    supports: dict[Path, dict[int, float]] = {}
    exact: dict[Path, float] = {(): 1.0}
    for _ in range(4):
        longer: dict[Path, float] = {}
        for path, chance in exact.items():
            supports[path] = conditional(decoder, path)
            for token, share in supports[path].items():
                longer[*path, token] = chance * share
        exact = longer

    trees = SupportTrees(supports)
    requests = [
        GenerationRequest(
            RequestKey(0, seed),
            PROMPT,
            arrival=0.0,
            sampling=SamplingParams(
                temperature=PARAMS.temperature,
                top_k=PARAMS.top_k,
                top_p=PARAMS.top_p,
                presence_penalty=PARAMS.presence_penalty,
                max_tokens=PARAMS.max_tokens,
                ignore_eos=True,
                seed=seed,
            ),
        )
        for seed in range(SEEDS)
    ]
    config = EngineConfig(num_pages=64, page_size=4, max_running=32, max_queued=SEEDS, adaptive=False)
    with running_loop(model, config, trees) as runner:
        answers = runner.run(requests)
        state = runner.loop.state()
    assert state.accepted_tokens == 2 * SEEDS

    counts = dict.fromkeys(exact, 0)
    for answer in answers:
        counts[answer.token_ids] += 1
    assert chi_square_p([(counts[path], SEEDS * chance) for path, chance in exact.items()]) > 1e-3


def chi_square_p(cells: list[tuple[int, float]]) -> float:
    """p-value of observed against expected counts; cells expected less than five times are put together."""
    large = [cell for cell in cells if cell[1] >= 5]
    rest = [cell for cell in cells if cell[1] < 5]
    if rest:
        large.append((sum(count for count, _ in rest), sum(expected for _, expected in rest)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in large)
    half = torch.tensor((len(large) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor(statistic / 2, dtype=torch.float64)))


def test_the_test_would_notice() -> None:
    even = [(100, 100.0) for _ in product(range(3), repeat=3)]
    assert chi_square_p(even) > 0.999
    assert chi_square_p([*even[1:], (200, 100.0)]) < 1e-3
