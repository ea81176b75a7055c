"""The published computation of EAGLE-1 and EAGLE-3, one row at a time, written from the papers and their reference.

Nothing of the draft service is used, so that a misreading in one of the two shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from support.eagle_heads import Layout, Shape

Tensors = dict[str, torch.Tensor]


@dataclass
class Published:
    """A head as its file describes it. `rows` holds each row's keys and values by layer, and its output."""

    tensors: Tensors
    family: str
    heads: int
    kv_heads: int
    embedding: torch.Tensor
    head: torch.Tensor
    ids: torch.Tensor
    theta: float = 10000.0
    llama3: dict[str, float] | None = None
    norm_before_residual: bool = False
    post_norm: bool = False
    layers: int = 1
    eps: float = 1e-5
    rows: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]] = field(default_factory=list)

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        if self.family == "eagle":
            return states[0]
        if "fc_norm.0.weight" in self.tensors:
            states = [self.normed(f"fc_norm.{i}", state) for i, state in enumerate(states)]
        joined = torch.cat(states)
        if "input_norm.weight" in self.tensors:
            joined = self.normed("input_norm", joined)
        return self.tensors["fc.weight"] @ joined

    def row(self, token: int, state: torch.Tensor, position: int, seen: list[int]) -> torch.Tensor:
        """Append a row that sees the rows `seen` and itself; logits over the target's vocabulary."""
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        e = self.embedding[token]
        if self.family == "eagle":
            if "enorm.weight" in self.tensors:
                e = self.normed("enorm", e)
            h = self.normed("hnorm", state) if "hnorm.weight" in self.tensors else state
            x = self.tensors["fc.weight"] @ torch.cat([e, h])
            if "fc.bias" in self.tensors:
                x = x + self.tensors["fc.bias"]
            u = self.normed("layers.0.input_layernorm", x) if "layers.0.input_layernorm.weight" in self.tensors else x
            residual = x
        else:
            g = self.normed("layers.0.hidden_norm", state)
            u = torch.cat([self.normed("layers.0.input_layernorm", e), g])
            residual = g if self.norm_before_residual else state
        for layer in range(self.layers):
            if layer > 0:
                u, residual = self.normed(f"layers.{layer}.input_layernorm", x), x
            x = residual + self.attention(layer, u, position, seen, kept)
            m = self.normed(f"layers.{layer}.post_attention_layernorm", x)
            gate, up = (self.tensors[f"layers.{layer}.mlp.{n}_proj.weight"] @ m for n in ("gate", "up"))
            x = x + self.tensors[f"layers.{layer}.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        scored = self.normed("norm", x) if "norm.weight" in self.tensors else x
        self.rows.append((kept, scored if self.post_norm else x))
        logits = torch.full((len(self.embedding),), -math.inf, dtype=x.dtype)
        logits[self.ids] = self.head @ scored
        return logits

    def attention(self, layer, u, position, seen, kept):
        prefix = f"layers.{layer}.self_attn."
        q, k, v = (self.projected(prefix, name, u) for name in "qkv")
        dim = len(q) // self.heads
        q, k, v = q.view(self.heads, dim), k.view(self.kv_heads, dim), v.view(self.kv_heads, dim)
        if prefix + "q_norm.weight" in self.tensors:
            q = torch.stack([self.normed(prefix + "q_norm", each) for each in q])
            k = torch.stack([self.normed(prefix + "k_norm", each) for each in k])
        q, k = self.rotated(q, position), self.rotated(k, position)
        kept.append((k, v))
        both = [self.rows[row][0][layer] for row in seen] + [(k, v)]
        out = []
        for head in range(self.heads):
            group = head // (self.heads // self.kv_heads)
            weights = torch.stack([q[head] @ each[0][group] for each in both]) / math.sqrt(dim)
            values = torch.stack([each[1][group] for each in both])
            out.append(torch.softmax(weights, 0) @ values)
        return self.tensors[prefix + "o_proj.weight"] @ torch.cat(out)

    def projected(self, prefix, name, u):
        y = self.tensors[f"{prefix}{name}_proj.weight"] @ u
        bias = self.tensors.get(f"{prefix}{name}_proj.bias")
        return y if bias is None else y + bias

    def rotated(self, x, position):
        half = x.shape[1] // 2
        out = x.clone()
        for i in range(half):
            w = self.theta ** (-i / half)
            if self.llama3 is not None:
                w = self.stretched(w)
            c, s = math.cos(position * w), math.sin(position * w)
            out[:, i] = x[:, i] * c - x[:, half + i] * s
            out[:, half + i] = x[:, half + i] * c + x[:, i] * s
        return out

    def stretched(self, w):
        s = self.llama3
        length = 2 * math.pi / w
        original = s["original_max_position_embeddings"]
        if length < original / s["high_freq_factor"]:
            return w
        if length > original / s["low_freq_factor"]:
            return w / s["factor"]
        smooth = (original / length - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        return (1 - smooth) * w / s["factor"] + smooth * w

    def normed(self, name, x):
        return x / torch.sqrt((x * x).mean() + self.eps) * self.tensors[f"{name}.weight"]


def published(layout: Layout, tensors: Tensors, target: Tensors, shape: Shape) -> Published:
    """The head that `write_head` wrote beside the target that `write_target` wrote, in float64."""
    double = {name: tensor.double() for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    embedding = double.get("embed_tokens.weight", target["model.embed_tokens.weight"].double())
    tied = layout.config.get("tie_word_embeddings")
    head = double.get("lm_head.weight", embedding if tied else target["lm_head.weight"].double())
    ids = torch.arange(shape.vocab)
    if "d2t" in tensors:
        ids = torch.tensor([entry + int(offset) for entry, offset in enumerate(tensors["d2t"])])
    elif "t2d" in tensors:
        ids = torch.tensor([token for token in range(shape.vocab) if tensors["t2d"][token]])
    norm_output = layout.config.get("norm_output", False)
    return Published(
        double,
        layout.family,
        shape.heads,
        shape.kv_heads,
        embedding,
        head,
        ids,
        theta=layout.config.get("rope_parameters", {}).get("rope_theta", 10000.0),
        llama3=layout.config.get("rope_scaling"),
        norm_before_residual=layout.config.get("norm_before_residual", False),
        post_norm=norm_output and (layout.nested or "fc_norm.0" in layout.norms),
        layers=layout.layers,
    )
