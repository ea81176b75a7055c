"""Changes of quantised checkpoints, each of which makes a lie of them, and what a refusal must name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.experts import pack_mxfp4, part_experts
from support.families import EXPERTS, GEMMA2
from support.families import FORMS as FAMILIES
from support.models import make_tiny_model
from support.quantised_models import FORMS, Form, Tensors, write_quantised

_WEIGHTS = "model.safetensors"
_SMALL: dict[str, Any] = {"vocab_size": 320, "layers": 1, "hidden_size": 64, "intermediate_size": 64}
_SCALE_PARTS = ("weight_scale", "weight_scale_inv", "scales")

FOLDERS: dict[str, tuple[Mapping[str, Any], str]] = {
    "llama fp8": ({"tied": False}, "fp8 tensor"),
    "llama int8": ({}, "int8 zeros"),
    "llama gptq": ({"tied": False}, "gptq asymmetric"),
    "gemma2 w4a16": (GEMMA2, "pack4 g32"),
    "gemma2 fp8": (GEMMA2, "fp8 block"),
    "gemma3 w4a16": (FAMILIES["gemma3"], "pack4 g64 zeros"),
    "gemma3 fp8": (FAMILIES["gemma3"], "float channel"),
    "phi3 fp8": (FAMILIES["phi3"], "float block"),
    "phi4 gptq": (FAMILIES["phi4-mini"], "gptq g64"),
    "mixtral awq": (EXPERTS["mixtral"], "awq g32"),
    "qwen3-moe fp8": (EXPERTS["qwen3_moe"], "fp8 block"),
    "qwen3-moe w4a16": (EXPERTS["qwen3_moe"], "pack4 g32"),
    "llama4 fp8": (EXPERTS["llama4"], "float channel"),
    "gpt-oss mxfp4": (EXPERTS["gpt_oss"], "mxfp4"),
}
"""Models, and how their weights are stored: those of every family and of every way there is."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a folder; `names`: one of these stands in what a start says."""

    title: str
    change: Callable[[Path], None]
    names: tuple[str, ...]


def write(name: str, root: Path) -> Path:
    """One of `FOLDERS`, in `root`."""
    arguments, stored = FOLDERS[name]
    arguments = {**arguments, **_SMALL}
    overrides = dict(arguments.get("overrides", {}))
    of_one_layer = {"moe_intermediate_size": 64, "mlp_only_layers": [], "moe_layers": [0], "no_rope_layers": [1]}
    overrides |= {field: value for field, value in of_one_layer.items() if field in overrides}
    source = make_tiny_model(root / f"{name}-source", **{**arguments, "overrides": overrides})
    if stored == "mxfp4":
        pack_mxfp4(source)
        return source
    if name.startswith("llama4"):
        part_experts(source)
    form, kept = FORMS[stored], ["lm_head", *_routers(source)]
    config = form.config if (key := _key(form.config)) is None else {**form.config, key: kept}
    return write_quantised(source, root / name, Form(config, form.write, tuple(kept)))


def _routers(folder: Path) -> list[str]:
    names = load_file(folder / _WEIGHTS)
    return [name.removesuffix(".weight") for name in names if name.endswith((".gate.weight", ".router.weight"))]


def _key(said: Mapping[str, Any]) -> str | None:
    """Which field names modules that are left out, in a list."""
    known = {"compressed-tensors": "ignore", "gptq": None}
    return known.get(said["quant_method"], "modules_to_not_convert")


def mutations(folder: Path) -> Iterator[Mutation]:
    """Of a folder of `write`, in one file: every one a lie."""
    tensors = load_file(folder / _WEIGHTS)
    modules = sorted(_modules(tensors))
    yield from _of_file(folder)
    yield from _of_config(folder, modules)
    parts = _modules(tensors)[modules[0]]
    changes = ((part, *change) for part in parts for change in _of_part(part, tensors[modules[0] + part]))
    for number, (part, title, change, ending) in enumerate(changes):
        module = modules[5 * number % len(modules)]  # of attention, of experts, of feed-forward layers, by turns
        yield Mutation(f"{title} of {module}{part}", _edited(module + part, change, ending), (module,))


def _modules(tensors: Tensors) -> dict[str, list[str]]:
    """How names of a quantised module's tensors go on, by how they begin."""
    of_experts = {name.removesuffix("_blocks"): ["_blocks", "_scales"] for name in tensors if name.endswith("_blocks")}
    if of_experts:
        return of_experts
    found: dict[str, list[str]] = {}
    for name in tensors:
        module, dot, part = name.rpartition(".")
        found.setdefault(module, []).append(dot + part)
    scaled = [module for module, parts in found.items() if {part[1:] for part in parts} & set(_SCALE_PARTS)]
    return {module: [part for part in found[module] if part != ".bias"] for module in scaled}


Change = Callable[[torch.Tensor], torch.Tensor | None]


def _of_part(part: str, tensor: torch.Tensor) -> Iterator[tuple[str, Change, str]]:
    """What is done, how, and what a new name ends in."""
    if part != ".g_idx":
        yield "the absence", lambda _: None, ""
    yield "another name", lambda each: each, "_of_old"
    yield "three elements in the place", lambda each: each.flatten()[:1].expand(3), ""
    yield "one more dimension", lambda each: each[None, None], ""
    yield "another type", lambda each: each.float().to(torch.float64 if each.is_floating_point() else torch.float32), ""
    if tensor.dim() > 1:
        yield "one line less", lambda each: each[1:], ""
        yield "the sizes turned round", lambda each: torch.zeros(*each.shape[::-1], 1, dtype=each.dtype), ""
    if part.lstrip(".") in _SCALE_PARTS:
        for value in (float("nan"), float("inf"), -float("inf"), 2.0**100, 2.0**-110):
            yield f"one {value:g}", _with_one(value), ""
    if tensor.dtype == torch.float8_e4m3fn:
        yield "a NaN", _with_one(float("nan")), ""
    if part == "_scales":
        yield "an exponent of 255", _with_one(255), ""
        yield "an exponent of 0", _with_one(0), ""
    if part == ".weight_shape":
        yield "other sizes", lambda each: each + 8, ""
    if part == ".g_idx":
        yield "other groups", lambda each: each + 1, ""


def _with_one(value: float) -> Change:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype).clone()
        wide.view(-1)[-1] = value
        return wide if tensor.dtype == torch.float16 else wide.to(tensor.dtype)

    return change


def _edited(name: str, change: Change, ending: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / _WEIGHTS)
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name + ending] = changed.contiguous()
        save_file(tensors, folder / _WEIGHTS)

    return edit


def _of_file(folder: Path) -> Iterator[Mutation]:
    size = (folder / _WEIGHTS).stat().st_size
    for kept in (0, 7, 100, size // 2, size - 1):
        yield Mutation(f"{kept} bytes", _rewritten(lambda old, kept=kept: old[:kept]), (_WEIGHTS,))  # type: ignore[misc]
    longer = _rewritten(lambda old: len(old).to_bytes(8, "little") + old[8:])
    yield Mutation("a header that is longer than its file", longer, (_WEIGHTS,))


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / _WEIGHTS
        path.write_bytes(change(path.read_bytes()))

    return edit


def _of_config(folder: Path, modules: list[str]) -> Iterator[Mutation]:
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    field = "quantization_config"
    yield Mutation("another method", _configured({**said, "quant_method": "bitsandbytes"}), (field,))
    yield Mutation("a list for an object", _configured([said]), (field,))
    yield Mutation("no word of it", _configured(None), tuple(modules))
    if said["quant_method"] != "mxfp4":
        yield Mutation("one expression that is none", _configured(_ignoring(said, "re:(")), ("has '('",))
        if _key(said) is not None:
            yield Mutation("one module left out", _configured(_ignoring(said, modules[-1])), (modules[-1],))
    text = json.dumps(said)
    for old, new in (
        ('"num_bits": 8', '"num_bits": 3'),
        ('"num_bits": 4', '"num_bits": 8'),
        ('"group_size": 32', '"group_size": 16'),
        ('"group_size": 32', '"group_size": 64'),
        ('"group_size": 64', '"group_size": 32'),
        ('"bits": 4', '"bits": 5'),
        ('"desc_act": false', '"desc_act": true'),
        ("[128, 128]", "[64, 64]"),
        ('"strategy": "channel"', '"strategy": "attn_head"'),
        ('"strategy": "block"', '"strategy": "channel"'),
    ):
        if old in text:
            yield Mutation(f"{new} for {old}", _configured(json.loads(text.replace(old, new))), (field, *modules))


def _ignoring(said: Mapping[str, Any], entry: str) -> dict[str, Any]:
    if (key := _key(said)) is None:
        return {**said, "dynamic": {f"-:{entry.removeprefix('re:')}": {}}}
    return {**said, key: [*said[key], entry]}


def _configured(value: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | {"quantization_config": value}
        (folder / "config.json").write_text(json.dumps(config))

    return edit
