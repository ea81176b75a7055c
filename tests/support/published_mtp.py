"""The published computation of MTP layers, one row at a time, from DeepSeek's report and MiMo's own code.

Nothing of the draft service is used, so that a misreading in one of the two shows.
"""

from __future__ import annotations

import torch

from support.mtp_heads import MtpLayout
from support.published_eagle import Published


class PublishedMtp(Published):
    """One layer. `rows` holds each row's keys and values, and what it leaves to the next layer or step."""

    layout = MtpLayout("nextn")

    def row(self, token: int, state: torch.Tensor, position: int, seen: list[int]) -> torch.Tensor:
        e, h = self.normed("enorm", self.embedding[token]), self.normed("hnorm", state)
        # DeepSeek's code has the embedding first, MiMo's the state.
        both = [h, e] if self.layout.kind == "mimo" else [e, h]
        x = self.tensors["projection.weight"] @ torch.cat(both)
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        x = x + self.attention(0, self.normed("layers.0.input_layernorm", x), position, seen, kept)
        m = self.normed("layers.0.post_attention_layernorm", x)
        gate, up = (self.tensors[f"layers.0.mlp.{name}_proj.weight"] @ m for name in ("gate", "up"))
        x = x + self.tensors["layers.0.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        scored = self.normed("norm", x)
        self.rows.append((kept, scored if self.post_norm else x))
        return self.head @ scored


def published_layers(
    layout: MtpLayout, layers: list[dict[str, torch.Tensor]], config: dict, target: dict[str, torch.Tensor]
) -> list[PublishedMtp]:
    """The layers that `write_mtp` wrote, in float64. target: the rows that they share with it."""
    found = []
    for tensors in layers:
        own = ("enorm", "hnorm", "norm", "projection")
        double = {
            name if name.split(".")[0] in own else f"layers.0.{name}": tensor.double()
            for name, tensor in tensors.items()
        }
        heads = config["num_attention_heads"]
        layer = PublishedMtp(
            double,
            "mtp",
            heads,
            config.get("num_key_value_heads", heads),
            target["model.embed_tokens.weight"].double(),
            target["lm_head.weight"].double(),
            torch.arange(config["vocab_size"]),
            theta=config.get("rope_theta", 10000.0),
            post_norm=layout.kind == "mimo",
            eps=config.get("rms_norm_eps", 1e-6),
        )
        layer.layout = layout
        found.append(layer)
    return found
