from __future__ import annotations

import torch

from draft_service.heads.loading import load_eagle
from draft_service.proposers.eagle.gpu_weights import head_weights
from support.eagle_heads import EAGLE3, write_head, write_target


def test_a_head_that_bfloat16_does_not_hold_is_told_of_once(tmp_path, caplog):
    write_target(tmp_path / "target")
    write_head(tmp_path / "head", EAGLE3["own embedding"])
    head = load_eagle(tmp_path / "head")
    head_weights(head, torch.device("cpu"))
    assert caplog.messages == ["the head's weights are rounded to bfloat16 on cpu"]
    caplog.clear()
    for tensor in (*head.weights.values(), head.vocabulary.embedding, head.vocabulary.head):
        tensor.copy_(tensor.bfloat16())
    head_weights(head, torch.device("cpu"))
    assert not caplog.messages
