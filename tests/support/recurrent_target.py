"""A target small enough to be a drafter's oracle, and the trees that its own distribution calls for."""

from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.ops.philox import gumbel

VOCAB, WIDTH = 24, 16


class RecurrentTarget:
    """A target whose state after token i is a function of the state before and of the token, in bfloat16."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.head = torch.randn(VOCAB, WIDTH, generator=generator)

    def step(self, state, tokens):
        return torch.tanh(state @ self.mix.T + self.embedding[tokens]).bfloat16().float()

    def states(self, tokens):
        state, states = torch.zeros(1, WIDTH), []
        for token in tokens:
            state = self.step(state, torch.tensor([token]))
            states.append(state)
        return torch.cat(states)

    def choice(self, tokens, sampling):
        """The token after `tokens`, by the published rule."""
        logits = (self.states(tokens)[-1:] @ self.head.T)[0].numpy()
        if sampling.temperature > 0:
            noise = gumbel(sampling.seed, sampling.choice, len(tokens), np.arange(VOCAB, dtype=np.int32))
            logits = logits / sampling.temperature + noise
        return int(logits.argmax())

    def text(self, tokens, more, sampling):
        tokens = list(tokens)
        for _ in range(more):
            tokens.append(self.choice(tokens, sampling))
        return tokens


def paths(tree):
    """Log-probability by path of tokens."""
    found, by_node = {}, []
    for token, parent, log_prob in zip(tree.token_ids, tree.parents, tree.log_probs, strict=True):
        path = (*(by_node[parent] if parent >= 0 else ()), token)
        by_node.append(path)
        found[path] = log_prob
    return found


def eagle2_tree(target, tokens, depth, k, total):
    """The published growth: the k best of each level are expanded, the total - 1 best of all are kept."""
    candidates, frontier = [], [((), 0.0)]
    for _ in range(depth):
        level = []
        for path, score in frontier:
            logits = target.states([*tokens, *path])[-1:].double() @ target.head.double().T
            log_probs = torch.log_softmax(logits[0], 0)
            best = torch.topk(log_probs, k)
            level += [((*path, int(t)), score + float(p)) for t, p in zip(best.indices, best.values, strict=True)]
        candidates += level
        frontier = sorted(level, key=lambda each: -each[1])[:k]
    return dict(sorted(candidates, key=lambda each: -each[1])[: total - 1])
