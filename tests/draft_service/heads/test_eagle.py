"""Logits of every layout are those of the published computation: prefill in chunks, trees, corrected states."""

import pytest
import torch

from draft_service.heads.eagle import HeadRows
from draft_service.heads.layer import RowSegment
from draft_service.heads.loading import load_eagle
from support.eagle_heads import EAGLE1, EAGLE3, Shape, write_head, write_target
from support.published_eagle import published

SHAPE = Shape()
TEXT = 9
TREE = (-1, -1, 0, 0, 2, 1)
"""Parents of the tree's rows; -1 is the row of the last committed token."""


def tree_mask(prefix):
    """bool [rows, prefix + rows]: the text, the row's ancestors and itself."""
    mask = torch.zeros(len(TREE), prefix + len(TREE), dtype=torch.bool)
    mask[:, :prefix] = True
    for row in range(len(TREE)):
        ancestor = row
        while ancestor >= 0:
            mask[row, prefix + ancestor] = True
            ancestor = TREE[ancestor]
    return mask


@pytest.mark.parametrize("name", [*(f"1: {name}" for name in EAGLE1), *(f"3: {name}" for name in EAGLE3)])
def test_logits(name, tmp_path):
    layout = (EAGLE1 if name.startswith("1") else EAGLE3)[name[3:]]
    target = write_target(tmp_path / "target")
    tensors = write_head(tmp_path / "head", layout, SHAPE, seed=5)
    head = load_eagle(tmp_path / "head", tmp_path / "target")
    reference = published(layout, tensors, target, SHAPE)
    width = layout.target_hidden or SHAPE.hidden
    generator = torch.Generator().manual_seed(3)
    count = layout.states if layout.family == "eagle3" else 1
    assert head.num_states == count
    states = torch.randn(TEXT, count * width, generator=generator) * 2
    tokens = torch.randint(SHAPE.vocab, (TEXT,), generator=generator)
    cache = head.new_cache()

    wanted, got = [], []
    for row in range(TEXT):
        fused = reference.fuse(list(states[row].double().split(width)))
        wanted.append(reference.row(int(tokens[row]), fused, row, list(range(row))))
    for begin, end in ((0, 4), (4, 5), (5, TEXT)):
        segment = RowSegment.committed(cache, end - begin)
        out = head.forward(
            HeadRows(tokens[begin:end], head.fuse(states[begin:end]), torch.arange(begin, end), [segment])
        )
        cache.length = end
        got.append(head.logits(out))
    close(torch.cat(got), torch.stack(wanted))

    # A tree below the last row, level by level would be the same: all parents' outputs come from the reference.
    children = torch.randint(SHAPE.vocab, (len(TREE),), generator=generator)
    wanted, inputs, positions = [], [], []
    for row, parent in enumerate(TREE):
        path, ancestor = [], parent
        while ancestor >= 0:
            path.append(TEXT + ancestor)
            ancestor = TREE[ancestor]
        inputs.append(reference.rows[TEXT + parent][1])
        positions.append(TEXT + len(path))
        wanted.append(reference.row(int(children[row]), inputs[-1], positions[-1], [*range(TEXT), *path]))
    segment = RowSegment(cache, TEXT, tree_mask(TEXT))
    out = head.forward(HeadRows(children, torch.stack(inputs).float(), torch.tensor(positions), [segment]))
    close(head.logits(out), torch.stack(wanted))
    close(out, torch.stack([row[1] for row in reference.rows[TEXT:]]))


def close(got, wanted):
    unscored = torch.isinf(wanted)
    assert torch.equal(torch.isinf(got), unscored)
    got, wanted = got.double().masked_fill(unscored, 0), wanted.masked_fill(unscored, 0)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    assert float((got - wanted).abs().max()) < 1e-4


def test_requests_share_a_pass(tmp_path):
    """Rows of several requests in one pass are those of each alone."""
    write_target(tmp_path / "target")
    write_head(tmp_path / "head", EAGLE3["layers.0"], SHAPE)
    head = load_eagle(tmp_path / "head", tmp_path / "target")
    tokens, states = torch.arange(7), torch.randn(7, SHAPE.hidden)
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    together = [RowSegment.committed(head.new_cache(), rows) for rows in (4, 3)]
    out = head.forward(HeadRows(tokens, states, positions, together))
    for rows in (slice(0, 4), slice(4, 7)):
        alone = RowSegment.committed(head.new_cache(), rows.stop - rows.start)
        torch.testing.assert_close(
            out[rows], head.forward(HeadRows(tokens[rows], states[rows], positions[rows], [alone]))
        )
