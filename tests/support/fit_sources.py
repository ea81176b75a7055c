"""A target small enough to train heads for within a second, and its own answers with their states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.common.model import CausalLM, initialise
from training.common.model_shape import ModelShape
from training.features.source import FeatureSequence, TokenSequence

SHAPE = ModelShape(128, 32, 8, 2, 1, 16, 48, max_positions=512)
EOS = 3
BOUNDARIES = (2, 4, 5, 9)


def small_target(folder: Path, seed: int = 0) -> CausalLM:
    """A random model whose text is far from uniform, written to `folder`."""
    model = CausalLM(SHAPE, torch.float32)
    initialise(model, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        scale = 0.5 if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")) else 0.15
        parameter.data += torch.randn(parameter.shape, generator=generator) * scale
        parameter.data = parameter.data.bfloat16().float()
    model.requires_grad_(False)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.bfloat16() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": SHAPE.vocab_size,
        "hidden_size": SHAPE.hidden_size,
        "intermediate_size": SHAPE.intermediate_size,
        "num_hidden_layers": SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.kv_heads,
        "head_dim": SHAPE.head_dim,
        "max_position_embeddings": SHAPE.max_positions,
        "rms_norm_eps": SHAPE.rms_norm_eps,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return model


def states_of(model: CausalLM, token_ids: torch.Tensor, boundaries: Sequence[int] = BOUNDARIES) -> torch.Tensor:
    """bfloat16 [n, boundaries * hidden]: what serving would publish."""
    cos, sin = model.cos[: len(token_ids)], model.sin[: len(token_ids)]
    streams = [model.embed(token_ids[None])]
    for layer in model.layers:
        streams.append(layer(streams[-1], cos, sin, None))
    streams.append(model.model.norm(streams[-1]))
    return torch.cat([streams[boundary][0] for boundary in boundaries], dim=-1).bfloat16()


def answered(model: CausalLM, number: int, *, prompt: int, answer: int, greedy: bool = False) -> FeatureSequence:
    """A random prompt and the model's answer at temperature 1 or 0, until the end of text."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(4, SHAPE.vocab_size, (prompt,), generator=generator)
    for _ in range(answer):
        logits = model(ids[None])[0, -1]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        ids = torch.cat((ids, logits.argmax()[None] if greedy else drawn))
        if int(ids[-1]) == EOS:
            break
    produced = torch.arange(len(ids)) >= prompt
    return FeatureSequence(str(number), "test", ids, produced, states_of(model, ids))


@dataclass
class InMemory:
    """A `FeatureSource` of given sequences. `fails_at`: the batch that cannot be read."""

    model: Path
    sequences: list[FeatureSequence]
    boundaries: tuple[int, ...] = BOUNDARIES
    hidden_size: int = SHAPE.hidden_size
    fails_at: int = -1
    reads: int = field(default=0, init=False)
    readers: int = 1

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(torch.cat([each.token_ids for each in self.sequences]).numpy().tobytes()).hexdigest()

    @property
    def lengths(self) -> list[int]:
        return [len(each.token_ids) for each in self.sequences]

    def __len__(self) -> int:
        return len(self.sequences)

    def tokens(self, index: int) -> TokenSequence:
        each = self.sequences[index]
        return TokenSequence(each.id, 0, each.category, each.token_ids, each.produced, each.recorded)

    def __getitem__(self, index: int) -> FeatureSequence:
        return self.sequences[index]

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        self.reads += 1
        if self.reads == self.fails_at:
            raise OSError("the disk is gone")
        return [self.sequences[index] for index in indices]
