"""EAGLE heads from checkpoint folders.

The family follows from the tensors' names, never from `architectures`. A tensor that is missing, unexpected or of
another shape than the config says is an error. Rows that a head shares with its target are read from the target's
folder.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from draft_service.heads.config import HeadConfig
from draft_service.heads.eagle import Eagle1, Eagle3, EagleHead, Vocabulary
from draft_service.heads.files import read_tensors
from draft_service.heads.names import canonical, check, family_of, num_states
from draft_service.heads.vocabulary import target_ids, token_map
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import is_tied, scales_embeddings
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.text_part import read_text_fields, text_prefix
from slipstream_kernels.models.checkpoint.tied_head import has_own_head
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors

_log = logging.getLogger(__name__)

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


def load_eagle(
    folder: Path, target: Path | None = None, map_file: Path | None = None, *, as_stored: bool = False
) -> EagleHead:
    """The head in `folder`, with the embedding and scoring rows of the model in `target` where it has none itself.

    map_file: the target ids that are scored (`vocabulary.token_map`), others are left out; for heads that score the
    target's whole vocabulary. as_stored: tensors keep the types of the files, for a GPU that takes them from there; the
    head computes nothing before `widen`. Raises CheckpointError.
    """
    config = HeadConfig.from_folder(folder)
    tensors = canonical(read_tensors(folder, quantisation=config.quantisation))
    family = family_of(tensors)
    check(family, config, tensors)
    maps = {name: tensors.pop(name, None) for name in ("d2t", "t2d")}
    if not as_stored:
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
    embedding, head, own_head = shared_rows(config, tensors, target, as_stored=as_stored)
    if family == "eagle":
        return Eagle1(config, tensors, whole_vocabulary(embedding, head, map_file))
    if not own_head and maps["d2t"] is not None:
        raise CheckpointError("d2t is there, but not lm_head.weight of the draft vocabulary")
    if config.draft_vocab_size not in (0, len(head)):
        source = "lm_head.weight" if own_head else "no lm_head.weight is there, and the one to take"
        raise CheckpointError(
            f"config.json: draft_vocab_size is {config.draft_vocab_size}, {source} has {len(head)} rows"
        )
    ids = target_ids(maps["d2t"], maps["t2d"], draft_size=len(head), target_size=len(embedding))
    if map_file is not None and ids is not None:
        raise CheckpointError("a token map is for heads without one; this EAGLE-3 head has d2t or t2d")
    own = Vocabulary(embedding, head, ids, len(embedding))
    vocabulary = own if map_file is None else whole_vocabulary(embedding, head, map_file)
    # In SpecForge's files norm_output only says that there is a norm before the scores.
    post_norm = config.norm_output and (config.speculators or "fc_norm.0.weight" in tensors)
    return Eagle3(config, tensors, vocabulary, num_states=num_states(config, tensors), post_norm=post_norm)


def whole_vocabulary(embedding: torch.Tensor, head: torch.Tensor, map_file: Path | None) -> Vocabulary:
    """A vocabulary that scores the target's tokens, or only those of `map_file`. Raises CheckpointError."""
    size = len(embedding)
    if map_file is None:
        return Vocabulary(embedding, head, target_ids(None, None, draft_size=len(head), target_size=size), size)
    ids = token_map(map_file, min(size, len(head)))
    return Vocabulary(embedding, head[ids], ids, size)


def shared_rows(
    config: HeadConfig, tensors: dict[str, torch.Tensor], target: Path | None, *, as_stored: bool = False
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Embedding rows, scoring rows, and whether the latter are the head's own. Those of the target are in float32
    unless they are wanted `as_stored`.

    They are `embed_tokens.weight` and `lm_head.weight` of `tensors`, else those of the model in `target`. Where the
    config ties the two, a copy is dropped from `tensors`. Raises CheckpointError.
    """
    own_head = _HEAD in tensors
    if config.tie_word_embeddings and own_head and _EMBEDDING in tensors:
        if torch.equal(tensors[_EMBEDDING], tensors[_HEAD]):
            del tensors[_HEAD]
        else:
            _log.warning("the config ties %s to the embedding, but the file has another one, which is used", _HEAD)
    embedding, head = tensors.get(_EMBEDDING), tensors.get(_HEAD)
    if head is None and config.tie_word_embeddings and embedding is not None:
        head = embedding
    if embedding is None or head is None:
        missing = _EMBEDDING if embedding is None else _HEAD
        if target is None:
            raise CheckpointError(f"{missing} is missing; name the target's folder, from which it is taken")
        if embedding is None and scales_embeddings(fields := read_text_fields(target)):
            raise CheckpointError(
                f"{missing} is missing, and the target's ({fields['model_type']}) are multiplied by a factor, which no "
                "head here does: it needs rows of its own"
            )
        own = {_EMBEDDING: embedding, _HEAD: head}
        rows = _target_tables(target, [name for name, tensor in own.items() if tensor is None])
        if not as_stored:
            rows = _widened(rows)
        embedding = rows[_EMBEDDING] if embedding is None else embedding
        head = rows[_HEAD] if head is None else head
    for name, each in ((_EMBEDDING, embedding), (_HEAD, head)):
        if each.ndim != 2 or each.shape[1] != config.hidden_size:
            raise CheckpointError(f"the target's {name} has shape {list(each.shape)}, the head needs its own")
    if config.vocab_size and len(embedding) != config.vocab_size:
        raise CheckpointError(f"config.json: vocab_size is {config.vocab_size}, the target's is {len(embedding)}")
    return embedding, head, own_head


def target_rows(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and scoring rows of the model in a folder, float32 [vocabulary, hidden]. Raises CheckpointError."""
    rows = _widened(_target_tables(folder, (_EMBEDDING, _HEAD)))
    return rows[_EMBEDDING], rows[_HEAD]


def _target_tables(folder: Path, wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Of `_EMBEDDING` and `_HEAD` those `wanted`, as stored; both are one tensor where they are tied."""
    fields = read_text_fields(folder)
    names = {_EMBEDDING: "model.embed_tokens.weight", _HEAD: "lm_head.weight"}
    if read_quantisation(fields) is not None:
        config = ModelConfig.from_folder(folder)
        if config.tie_word_embeddings:
            names[_HEAD] = names[_EMBEDDING]
        found = dict(iterate_tensors(folder, config, [names[each] for each in wanted]))
    else:
        prefix = text_prefix(fields.get("model_type"))
        names = {each: prefix + name for each, name in names.items()}
        if is_tied(fields) and not has_own_head(folder, prefix):
            names[_HEAD] = names[_EMBEDDING]
        found = read_tensors(folder, [names[each] for each in wanted])
    missing = [names[each] for each in wanted if names[each] not in found]
    if missing:
        raise CheckpointError(f"{folder}: {missing[0]} is missing")
    return {each: found[names[each]] for each in wanted}


def _widened(rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In float32; what is one tensor stays one."""
    of_id = {id(tensor): tensor.float() for tensor in rows.values()}
    return {name: of_id[id(tensor)] for name, tensor in rows.items()}
