"""Which proposer a folder of weights is for, told by the names of its tensors. No weight is read and no code is run."""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

from slipstream.lfs_pointer import BEGINNING, refuse_pointer
from slipstream.model_folder import no_such_folder

MOST_BYTES = 100_000_000
"""Of a list of names; the format safetensors has the same limit."""

_FILES = ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Where names are looked for, in order; the index of a file that is split has `.index.json` behind its name."""

OTHER_FAMILIES = (
    (r"(.*\.)?mask_hidden", "P-EAGLE"),
    (r"(.*\.)?(mtp_layers\..*|eh_proj\..*)", "MTP"),
    (r"medusa_heads?\..*|\d+\.0\.linear\..*|(blocks|lm_heads)\.\d+\..*", "Medusa"),
    (r"(speculator\.)?(forget_emb|projs|emb\.\d+|proj\.\d+)\.\d+\.weight", "Arctic speculator"),
    (r"(speculator\.)?emb\.\d+\.weight", "MLP speculator"),
)
"""What one tensor's name says of a family that is not EAGLE's, the most telling first."""

_WEIGHT = "(weight|weight_packed|qweight)"
"""What the name of a linear layer's weight ends in, quantised or not."""
_FAMILIES = (
    *OTHER_FAMILIES,
    (r"(model\.)?hidden_norm\.weight", "DFlash"),
    (r"d2t|(.*\.)?(midlayer|layers\.0)\.hidden_norm\.weight", "EAGLE-3"),
    (rf"(model\.)?(fc|fusion_fc)\.{_WEIGHT}", "EAGLE-1"),
    (rf"model\.layers\.0\.self_attn\.q_proj\.{_WEIGHT}", "language model"),
)
_METHODS = {
    "MTP": "mtp",
    "Medusa": "medusa",
    "MLP speculator": "mlp-speculator",
    "EAGLE-3": "eagle3",
    "EAGLE-1": "eagle",
    "language model": "draft-model",
}


def method_of(folder: Path) -> str:
    """The proposer whose weights lie in `folder`. ValueError, which says why, if that cannot be told."""
    if not folder.is_dir():
        raise ValueError(no_such_folder(folder))
    names = tensor_names(folder)
    for pattern, family in _FAMILIES:
        if any(re.fullmatch(pattern, name) for name in names):
            if family in _METHODS:
                return _METHODS[family]
            raise ValueError(f"{folder} holds tensors of the family {family}, which no proposer drafts with")
    raise ValueError(f"the tensors in {folder} belong to no known drafter")


def tensor_names(folder: Path) -> frozenset[str]:
    """Names of the tensors in a folder; among those of a pickled file are other texts that it holds. ValueError."""
    for name in _FILES:
        path, index = folder / name, folder / f"{name}.index.json"
        try:
            if (index.exists() and not index.is_file()) or (path.exists() and not path.is_file()):
                raise ValueError("not a regular file")
            _refuse_pointer(index if index.exists() else path)
            if index.exists():
                with index.open("rb") as file:
                    return frozenset(_object(file.read(MOST_BYTES))["weight_map"])
            if path.exists():
                return _in_safetensors(path) if path.suffix == ".safetensors" else _in_pickle(path)
        except Exception as error:  # zipfile and pickletools raise whatever a file that lies makes them run into
            raise ValueError(f"the names in {path} cannot be read: {' '.join(str(error).split())[:300]}") from error
    raise ValueError(f"{folder} holds none of {', '.join(_FILES)}, and no index of one")


def _refuse_pointer(path: Path) -> None:
    if path.exists():
        with path.open("rb") as file:
            refuse_pointer(path, file.read(len(BEGINNING)))


def _in_safetensors(path: Path) -> frozenset[str]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_BYTES:
            raise ValueError(f"a header of {size} bytes, the limit is {MOST_BYTES}")
        return frozenset(_object(file.read(size))) - {"__metadata__"}


def _in_pickle(path: Path) -> frozenset[str]:
    """All texts in the pickle of a file that torch.save wrote. It is looked through and never run."""
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
        if not members:
            raise ValueError("no file that torch.save writes")
        with archive.open(members[0]) as member:
            content = member.read(MOST_BYTES)
    return frozenset(value for _, value, _ in pickletools.genops(content) if isinstance(value, str))


def _object(text: bytes) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return content
