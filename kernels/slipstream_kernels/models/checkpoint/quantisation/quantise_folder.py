"""A copy of a model's folder whose linear layers are quantised."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, read_json
from slipstream_kernels.models.checkpoint.expert_names import is_router
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.tensor_names import stored_name
from slipstream_kernels.models.checkpoint.text_part import OTHER_PREFIXES, has_other_parts
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING, HEAD
from slipstream_kernels.models.checkpoint.weight_file import open_weights
from slipstream_kernels.models.checkpoint.weight_loader import check_headers, stored_shapes, weight_files
from slipstream_kernels.progress import ProgressBar

_WEIGHT = ".weight"
_INDEX = "model.safetensors.index.json"


def quantise_folder(folder: Path, out: Path, form: RoundedFormat, device: str = "cpu") -> str:
    """Write `out`, whole or not at all, and say what was done. Raises CheckpointError, or OSError.

    device: where weights are rounded, to the same bits on all.
    """
    config = ModelConfig.from_folder(folder)
    if config.quantisation is not None:
        raise CheckpointError(f"{folder}: the model is quantised already ({config.quantisation.method})")
    if out.exists():
        raise CheckpointError(f"{out}: there is something already")
    if config.fused_experts:
        raise CheckpointError(f"{folder}: the experts of a layer are one tensor; supported is one for each module")
    check_headers(folder, config)
    embedding, head = stored_name(config, EMBEDDING), stored_name(config, HEAD)
    linear = {name: shape for name, shape in stored_shapes(config) if len(shape) == 2 and name not in (embedding, head)}
    routers = {name for name in linear if is_router(name)}
    rounded = {name for name, shape in linear.items() if form.takes(shape)} - routers
    if not rounded:
        raise CheckpointError(f"{folder}: no layer has inputs that are a multiple of {form.group}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as place:
        made = Path(place) / out.name
        before, after = _write(folder, made, form, rounded, device)
        left = sorted(name.removesuffix(_WEIGHT) for name in linear.keys() - rounded - routers)
        kept = sorted(name.removesuffix(_WEIGHT) for name in routers)
        others = [f"re:{each}" for each in OTHER_PREFIXES if has_other_parts(config.family)]
        _write_config(folder, made, form, [head.removesuffix(_WEIGHT), *kept, *left, *others])
        made.replace(out)
    told = f"; left as they are, as their inputs are no multiple of {form.group}: {', '.join(left)}" if left else ""
    sizes = f"{before / 2**20:.1f} MiB of tensors became {after / 2**20:.1f} MiB"
    return f"{len(rounded)} layers in {form.name}, {sizes}{told}"


def _write(folder: Path, made: Path, form: RoundedFormat, rounded: set[str], device: str) -> tuple[int, int]:
    """All files but config.json. Returns bytes of tensors before and after."""
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors", _INDEX, "config.json"))
    before, after = 0, 0
    weight_map: dict[str, str] = {}
    files = weight_files(folder)
    with ProgressBar(total=len(rounded), desc="rounding", unit="layer") as bar:
        for path in files:
            tensors = {}
            with open_weights(path) as file:
                for name in file.names:
                    tensor = file.read(name)
                    before += tensor.nbytes
                    if name not in rounded:
                        tensors[name] = tensor
                        continue
                    weight = tensor.to(device).bfloat16()
                    if not bool(weight.isfinite().all()):
                        raise CheckpointError(f"{path}: {name} holds NaN or infinite numbers, which are not rounded")
                    parts = form.rounded(weight)
                    tensors |= {f"{name.removesuffix(_WEIGHT)}.{part}": each.cpu() for part, each in parts.items()}
                    bar.update()
            after += sum(tensor.nbytes for tensor in tensors.values())
            weight_map |= dict.fromkeys(tensors, path.name)
            save_file(tensors, made / path.name, metadata={"format": "pt"})
            shutil.copymode(path, made / path.name)
    if (folder / _INDEX).exists():
        _write_json(made / _INDEX, {"metadata": {"total_size": after}, "weight_map": dict(sorted(weight_map.items()))})
    return before, after


def _write_config(folder: Path, made: Path, form: RoundedFormat, ignored: list[str]) -> None:
    config = read_json(folder / "config.json")
    _write_json(made / "config.json", {**config, "quantization_config": form.config(ignored)})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
