"""MTP layers from the target's own folder, or from one that they were extracted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from draft_service.heads.config import HeadConfig
from draft_service.heads.files import read_tensors, tensor_names
from draft_service.heads.loading import shared_rows, whole_vocabulary
from draft_service.heads.mtp import MtpHead
from draft_service.heads.mtp_names import check, embedding_first, find
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, count, read_json

_NUMBER = "num_nextn_predict_layers"


def holds_a_model(folder: Path) -> bool:
    """Whether a folder has an embedding beside its MTP layers, as a target's own folder. Raises CheckpointError."""
    return "model.embed_tokens.weight" in tensor_names(folder)


def load_mtp(
    folder: Path, target: Path | None = None, map_file: Path | None = None, *, post_norm: bool | None = None
) -> MtpHead:
    """The MTP layers in `folder`, with embedding and scoring rows of `target` where they have none themselves.

    map_file: the target ids that are scored (`vocabulary.token_map`); others are left out. post_norm: whether a layer's
    state is fed back after its norm; None: as the layout's own code does (MiMo after, DeepSeek before). Raises
    CheckpointError.
    """
    config = HeadConfig.from_folder(folder)
    layout, names = find(tensor_names(folder, quantisation=config.quantisation))
    stored = read_tensors(folder, names, quantisation=config.quantisation)
    tensors = {names[name]: embedding_first(layout, names[name], stored[name]) for name in names}
    number, expected = len({name.split(".")[1] for name in tensors if name.startswith("layers.")}), _expected(folder)
    if expected and number != expected:
        raise CheckpointError(f"config.json: {_NUMBER} is {expected}, the folder holds {number} MTP layers")
    config = replace(config, num_layers=number)
    check(config, tensors)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    embedding, head, _ = shared_rows(config, tensors, target)
    vocabulary = whole_vocabulary(embedding, head, map_file)
    return MtpHead(config, tensors, vocabulary, post_norm=layout == "mimo" if post_norm is None else post_norm)


def _expected(folder: Path) -> int:
    """How many MTP layers the config says there are; 0 where it says nothing."""
    return count(read_json(folder / "config.json"), _NUMBER)
