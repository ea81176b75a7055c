"""Both masks are the same, and the block mask lists whole and partial blocks as they are."""

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_mask

from training.common.attention_masks import block_mask, dense_mask
from training.demo_models.data import Corpus, pack


def test_block_mask_equals_dense_mask() -> None:
    lengths = np.array([100, 28, 300, 60, 130, 17, 1, 255, 128])
    tokens = torch.ones(int(lengths.sum()), dtype=torch.int16)
    corpus = Corpus(tokens, tokens.to(torch.float16), lengths)
    documents = pack(corpus, np.arange(len(lengths)), 512, 0.3, 1).documents
    blocks = block_mask(documents)
    dense = dense_mask(documents)
    made = create_mask(blocks.mask_mod, len(documents), 1, 512, 512, device="cpu")
    assert torch.equal(made, dense)
    partial, full = block_tables(blocks.kv_num_blocks, blocks.kv_indices), None
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    full = block_tables(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    tiles = dense[:, 0].unflatten(1, (4, 128)).unflatten(3, (4, 128))
    assert torch.equal(full, tiles.all(dim=4).all(dim=2))
    assert torch.equal(partial | full, tiles.any(dim=4).any(dim=2))


def block_tables(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Boolean [B, Q, K] of listed blocks."""
    counts, indices = counts[:, 0], indices[:, 0].long()
    chosen = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros_like(chosen).scatter(-1, indices, chosen)
