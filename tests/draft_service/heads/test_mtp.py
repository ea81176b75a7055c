"""Logits of both layouts are those of the published computation: text in chunks, trees level by level, many layers."""

import json
from itertools import pairwise

import pytest
import torch

from draft_service.heads.eagle import HeadRows
from draft_service.heads.layer import RowSegment
from draft_service.heads.mtp_loading import load_mtp
from support.eagle_heads import write_target
from support.mtp_heads import LAYOUTS, write_mtp
from support.published_mtp import published_layers

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rope_theta": 640000.0}
TEXT = 9
"""Tokens; so 8 states."""
LEVELS = ((-1, -1), (0, 0, 1), (3, 2), (5,), (7,))
"""Parents of a tree's nodes, numbered through; -1 is the last row of the text."""


class Case:
    """A head, what is published of it, and a random text."""

    def __init__(self, folder, name):
        layout = LAYOUTS[name]
        target = write_target(folder / "target", **SHAPE)
        self.config = json.loads((folder / "target" / "config.json").read_text())
        own = folder / "head"
        self.tensors = write_mtp(folder / "target", layout, None if layout.inside else own, seed=4)
        lends = folder / "target" if layout.inside or not layout.own_rows else None
        self.head = load_mtp(folder / "target" if layout.inside else own, lends)
        self.fresh = lambda: published_layers(layout, self.tensors, self.config, target)
        generator = torch.Generator().manual_seed(8)
        self.tokens = torch.randint(96, (TEXT,), generator=generator).tolist()
        self.states = torch.randn(TEXT - 1, 32, generator=generator) * 2
        self.drawn = torch.randint(96, (20,), generator=generator).tolist()

    def published(self, tokens):
        """Each layer on its own: row i takes the layer before's row i, or the target's, and token i + layer + 1."""
        layers, logits = self.fresh(), []
        for index, layer in enumerate(layers):
            before = [row[1] for row in layers[index - 1].rows] if index else list(self.states.double())
            rows = range(min(len(before), len(tokens) - 1 - index))
            logits.append([layer.row(tokens[row + index + 1], before[row], row, list(range(row))) for row in rows])
        return layers, logits

    def text(self, cache, cuts=(0, 3, 4, TEXT - 1)):
        """Our rows of the text, in chunks; what `forward` gave."""
        outputs = []
        for begin, end in pairwise(cuts):
            segment = RowSegment.committed(cache, end - begin)
            tokens = torch.tensor(self.tokens[begin + 1 : end + 1])
            rows = HeadRows(tokens, self.head.fuse(self.states[begin:end]), torch.arange(begin, end), [segment])
            outputs.append(self.head.forward(rows))
            cache.length = end
        return torch.cat(outputs)

    def level(self, cache, paths, tokens, states):
        """Our rows of one level, whose nodes have these paths of rows, their own last."""
        mask = torch.zeros(len(paths), TEXT - 1 + paths[-1][-1] + 1, dtype=torch.bool)
        mask[:, : TEXT - 1] = True
        for row, path in enumerate(paths):
            mask[row, [TEXT - 1 + each for each in path]] = True
        depth = len(paths[0])
        positions = torch.full((len(paths),), TEXT - 2 + depth)
        segment = RowSegment(cache, TEXT - 1 + paths[0][-1], mask)
        return self.head.forward(HeadRows(torch.tensor(tokens), torch.cat(states), positions, [segment], depth))


def close(got, wanted):
    assert float((got.double() - wanted).abs().max()) < 1e-4


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits(name, tmp_path):
    case = Case(tmp_path, name)
    layers, logits = case.published(case.tokens)
    cache = case.head.new_cache()
    outputs = case.text(cache)
    close(case.head.logits(outputs), torch.stack(logits[0]))

    # Layer k's rows of nodes: their parents' outputs of the layer before, for layer 0 what the parents were scored by.
    last = TEXT - 2
    left = {-1: [layer.rows[last - index][1] for index, layer in enumerate(layers)]}
    scored, ours, paths, places = {-1: left[-1][0]}, {-1: outputs[-1:]}, {-1: []}, [{} for _ in layers]
    for depth, parents in enumerate(LEVELS, 1):
        first = len(paths) - 1
        nodes = range(first, first + len(parents))
        for node, parent in zip(nodes, parents, strict=True):
            paths[node] = [*paths[parent], node]
        got = case.level(cache, [paths[n] for n in nodes], case.drawn[first:][: len(nodes)], [ours[p] for p in parents])
        wanted = []
        for row, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            left[node] = []
            for index, layer in enumerate(layers):
                state = left[parent][index - 1] if index else scored[parent]
                seen = [*range(TEXT - 1 - index), *(places[index][each] for each in paths[parent])]
                result = layer.row(case.drawn[node], state, last + depth - index, seen)
                places[index][node] = len(layer.rows) - 1
                left[node].append(layer.rows[-1][1])
                if index == depth % len(layers):
                    wanted.append(result)
            scored[node], ours[node] = left[node][depth % len(layers)], got[row : row + 1]
        close(case.head.logits(got, depth), torch.stack(wanted))


@pytest.mark.parametrize("name", ["MiMo", "MiMo, two layers", "NextN, three layers"])
def test_a_step_for_each_layer_is_what_training_computes(name, tmp_path):
    """After the text and d drafted tokens, layer d's last row scores the next; no state but the text's is needed."""
    case = Case(tmp_path, name)
    cache = case.head.new_cache()
    states = case.text(cache)[-1:]
    for depth in range(len(case.tensors)):
        if depth:
            states = case.level(cache, [list(range(depth))], [case.drawn[depth - 1]], [states])
        _, logits = case.published([*case.tokens, *case.drawn[:depth]])
        close(case.head.logits(states, depth)[0], logits[depth][TEXT - 2])


def test_requests_share_a_pass(tmp_path):
    case = Case(tmp_path, "NextN, three layers")
    head, tokens, positions = case.head, torch.arange(7), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    states = case.states[:7]
    together = [RowSegment.committed(head.new_cache(), rows) for rows in (4, 3)]
    out = head.forward(HeadRows(tokens, states, positions, together, 2))
    for rows in (slice(0, 4), slice(4, 7)):
        alone = RowSegment.committed(head.new_cache(), rows.stop - rows.start)
        one = head.forward(HeadRows(tokens[rows], states[rows], positions[rows], [alone], 2))
        torch.testing.assert_close(out[rows], one)
