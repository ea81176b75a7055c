"""Heads in the layouts that other engines load: what differs is names, conventions of numbers, and what must be there.

Sources: SGLang 0.5.16's `models/llama_eagle3.py` and `llama_eagle.py`, and what `llama.py`, `qwen2.py` and `qwen3.py`
capture; vLLM's `models/llama_eagle3.py`, `medusa.py` and `transformers_utils/configs/`; the configurations of the
speculators project.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, read_json
from slipstream_kernels.models.checkpoint.text_part import read_text_fields
from slipstream_kernels.models.checkpoint.weight_loader import weight_files
from training.common.atomic_files import write_whole
from training.fit.card import CARD
from training.fit.head_folder import write_head
from training.fit.target import SCORES, TargetRows

SGLANG, VLLM, SPECULATORS = "sglang", "vllm", "speculators"
FORMATS: Final = (SGLANG, VLLM, SPECULATORS)
LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
HEAD: Final = "head"
DEFAULT_BOUNDARIES: Final = 3
"""How many boundaries an EAGLE-3 head reads where nothing else is said."""
_OUTER: Final = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings", LAYER_IDS, "architectures")
"""What speculators' configurations have beside, and not in, that of the layer."""


@dataclass(frozen=True, slots=True)
class Published:
    """Tensors and config.json of a head. `model`: folder of its target, where a layout needs to know it."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    model: Path | None = None
    draft_tokens: int = 5
    """How many tokens a chain is to have where the configuration says so."""


def export_head(source: Path, out: Path, layout: str, *, model: Path | None = None, draft_tokens: int = 5) -> str:
    """Write the head of a run of `fit`, or of a folder such as its `head/`, in another layout; gives its family.

    `out` is there once it is whole: what a killed run has left beside it is written anew. ValueError where the layout
    has no place for the head, or `out` is there already; CheckpointError where the head cannot be read.
    """
    folder = source / HEAD if (source / HEAD).is_dir() else source
    config = read_json(folder / "config.json")
    family = _family(config)
    convert = _CONVERTERS.get((family, layout))
    if convert is None:
        known = sorted(each for kind, each in _CONVERTERS if kind == family) or ["none"]
        raise ValueError(f"{layout} has no layout for a head of {family}; there is: {', '.join(known)}")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty")
    published = convert(Published(_read(folder), config, model, draft_tokens))
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    write_head(part, published.tensors, published.config, torch.bfloat16)
    for extra in folder.glob("tokenizer*"):
        shutil.copyfile(extra, part / extra.name)
    if (card := folder / CARD).is_file():
        write_whole(part / CARD, card.read_bytes() + f"\nThis folder has the layout that {layout} loads.\n".encode())
    part.replace(out)
    return family


_FAMILIES: Final = {
    "LlamaForCausalLMEagle3": "eagle3",
    "LlamaForCausalLMEagle": "eagle",
    "MedusaModel": "medusa",
    "MLPSpeculatorPreTrainedModel": "mlp-speculator",
    "MiMoMTPModel": "mtp",
    "LlamaForCausalLM": "draft-model",
}


def _family(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures") or [""]
    family = _FAMILIES.get(architectures[0])
    if family is None:
        raise ValueError(f"config.json: architectures is {architectures}, no head that `fit` writes")
    return family


def _read(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    return tensors


def _unchanged(head: Published) -> Published:
    return head


def _eagle3_for_vllm(head: Published) -> Published:
    """Boundaries as they are: vLLM counts as we do. It has room for three of them."""
    head = _in_order(head)
    _check_three(head)
    return Published(_scored(head), head.config)


def _eagle3_for_sglang(head: Published) -> Published:
    """Boundaries in `eagle_config`, as outputs of layers: SGLang adds one to every such list of a Llama or Qwen.

    The list of boundaries stays beside it, where vLLM and we look first and SGLang does not. ValueError for boundaries
    behind the last layer, which SGLang does not capture, and for a number of them that no list says.
    """
    head = _in_order(head)
    boundaries = _named(head)
    if not boundaries:
        _check_three(head)
        return Published(_scored(head), head.config)
    _check_captured(head, boundaries[-1])
    counted = {"num_aux_hidden_states": len(boundaries)} if len(boundaries) != DEFAULT_BOUNDARIES else {}
    outputs = {"use_aux_hidden_state": True, LAYER_IDS: [each - 1 for each in boundaries]}
    return Published(_scored(head), head.config | counted | {"eagle_config": outputs})


def _check_captured(head: Published, last: int) -> None:
    """ValueError where boundary `last` is behind the last layer of the target, as far as that is known."""
    if head.model is None:
        return
    layers: int = read_text_fields(head.model)["num_hidden_layers"]
    if last >= layers:
        raise ValueError(f"SGLang captures states up to boundary {layers - 1} of --model, the head reads {last}")


def _eagle3_for_speculators(head: Published) -> Published:
    """Its names, and the layer's configuration within the head's."""
    if head.model is None:
        raise ValueError("speculators' configuration names the target: --model DIR")
    target = read_json(head.model / "config.json")
    verifier = {"name_or_path": str(head.model), "architectures": target.get("architectures", [])}
    head = _in_order(head)
    _check_three(head)
    boundaries = _named(head)
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in _scored(head).items()}
    layer = {name: value for name, value in head.config.items() if name not in _OUTER}
    proposal = {"proposal_type": "greedy", "speculative_tokens": head.draft_tokens, "accept_tolerance": 0.0}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": head.config["draft_vocab_size"],
        "norm_before_residual": False,
        "target_hidden_size": head.config["target_hidden_size"],
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1}],
            "verifier": verifier,
        },
    }
    if boundaries:
        config[LAYER_IDS] = boundaries
    return Published(tensors, config)


def _scored(head: Published) -> dict[str, Tensor]:
    """An EAGLE-3 head's tensors with the target's scoring rows, where it leaves them to the target. ValueError."""
    if SCORES in head.tensors:
        return head.tensors
    if head.model is None:
        raise ValueError("the head scores with its target's rows, which other engines want in its folder: --model DIR")
    target = _target_of(head, head.model)
    if head.config["draft_vocab_size"] != target.config.vocab_size:
        scored = head.config["draft_vocab_size"]
        raise ValueError(f"--model has {target.config.vocab_size} tokens, the head, without rows, scores {scored}")
    return head.tensors | {SCORES: target.head}


def _target_of(head: Published, model: Path) -> TargetRows:
    """The model's rows, in bfloat16. ValueError where it is no target of the head."""
    target = TargetRows(model, torch.device("cpu"), torch.bfloat16)
    if (hidden := target.config.hidden_size) != head.config["hidden_size"]:
        raise ValueError(f"--model has a hidden size of {hidden}, the head {head.config['hidden_size']}")
    return target


def _named(head: Published) -> list[int]:
    """Boundaries that the head names; none where they are the default ones."""
    named: list[int] = head.config.get(LAYER_IDS, [])
    return named


def _read_by(head: Published) -> int:
    """How many boundaries the head reads. ValueError where its list says another number."""
    width: int = head.config["target_hidden_size"]
    count = int(head.tensors["fc.weight"].shape[1]) // width
    if (named := len(_named(head))) and named != count:
        raise ValueError(f"the head reads {count} boundaries, {LAYER_IDS} names {named}")
    return count


def _check_three(head: Published) -> None:
    """ValueError unless the head reads three boundaries."""
    if (count := _read_by(head)) != DEFAULT_BOUNDARIES:
        raise ValueError(f"the head reads {count} boundaries, not three")


def _in_order(head: Published) -> Published:
    """The same head with its boundaries in ascending order, in which other engines lay their states side by side."""
    count, named = _read_by(head), _named(head)
    if named == sorted(named):
        return head
    order = sorted(range(count), key=named.__getitem__)
    blocks = head.tensors["fc.weight"].chunk(count, dim=1)
    fc = torch.cat([blocks[each] for each in order], dim=1)
    config = head.config | {LAYER_IDS: [named[each] for each in order]}
    return replace(head, tensors=head.tensors | {"fc.weight": fc}, config=config)


def _eagle_for_sglang(head: Published) -> Published:
    """SGLang's fc always has a bias, at random where the file has none."""
    bias = torch.zeros(head.config["hidden_size"], dtype=head.tensors["fc.weight"].dtype)
    return Published({"fc.bias": bias} | head.tensors, head.config | {"bias": True})


def _medusa_for_vllm(head: Published) -> Published:
    """vLLM's names, and the target's scoring rows once for all heads."""
    if head.model is None:
        raise ValueError("vLLM's Medusa heads hold the target's scoring rows: --model DIR")
    target = _target_of(head, head.model)
    tensors = {"lm_heads.0.weight": target.head}
    for name, tensor in head.tensors.items():
        number, layer, _, part = name.split(".")
        tensors[f"blocks.{number}.layers.{layer}.{part}"] = tensor
    return Published(
        tensors, head.config | {"original_lm_head": True, "truncated_vocab_size": target.config.vocab_size}
    )


_CONVERTERS: Final[dict[tuple[str, str], Callable[[Published], Published]]] = {
    ("eagle3", SGLANG): _eagle3_for_sglang,
    ("eagle3", VLLM): _eagle3_for_vllm,
    ("eagle3", SPECULATORS): _eagle3_for_speculators,
    ("eagle", SGLANG): _eagle_for_sglang,
    ("eagle", VLLM): _unchanged,
    ("medusa", VLLM): _medusa_for_vllm,
    ("mlp-speculator", VLLM): _unchanged,
    ("draft-model", SGLANG): _unchanged,
    ("draft-model", VLLM): _unchanged,
}
"""An MTP layer has no file of its own: engines look for it among the tensors of its target."""
