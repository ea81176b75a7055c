"""Files of checkpoints that lie: configurations, headers and indices of weights, tokenizers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from draft_service.heads.loading import load_eagle
from draft_service.heads.medusa_loading import load_medusa
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from fuzz.json_values import changed, leaf
from fuzz.raw_bytes import NUMBERS, joined, mutated, parted
from fuzz.target import BrokenError, Target
from gateway.tokens.tokenizer import Tokenizer
from slipstream.chat_template import ChatTemplate
from slipstream.rpc.errors import SlipstreamError
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from support import eagle_heads, medusa_heads, mlp_speculators
from support.experts import pack_mxfp4
from support.families import EXPERTS
from support.models import make_tiny_model

_HEADER = struct.Struct("<Q")


def _read_target(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    load_tensors(folder, config)
    fingerprint(folder)


def _read_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokenizer.decode(tokenizer.encode("ab", add_special_tokens=True))
    ChatTemplate.from_folder(folder).render([{"role": "user", "content": "a"}])


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is read without complaint, and by what."""

    path: Path
    read: Callable[[Path], object]
    files: tuple[str, ...]


class Checkpoints(Target):
    """A reader returns, or says in an error of the domain what is wrong; little memory is taken."""

    name: ClassVar[str] = "checkpoints"
    share: ClassVar[int] = 20

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        target = folder / "target"
        eagle_heads.write_target(target, tied=True)
        tiny: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "heads": 1, "head_dim": 16, "layers": 1}
        single = make_tiny_model(folder / "single", vocab_size=262, max_context=64, **tiny)
        sharded = make_tiny_model(folder / "sharded", vocab_size=262, max_context=64, shards=2, **tiny)
        eagle, medusa, speculator = (folder / name for name in ("eagle", "medusa", "speculator"))
        eagle_heads.write_head(eagle, eagle_heads.EAGLE3["layers.0"])
        medusa_heads.write_medusa(medusa, medusa_heads.LAYOUTS["vLLM"])
        mlp_speculators.write_speculator(speculator, mlp_speculators.LAYOUTS["nothing shared"])
        narrow = {"layers": 1, "hidden_size": 32, "intermediate_size": 32}
        mixture = make_tiny_model(folder / "mixture", vocab_size=262, **EXPERTS["gpt_oss"] | narrow)
        pack_mxfp4(mixture)
        index = "model.safetensors.index.json"
        self._folders = (
            _Folder(single, _read_target, ("config.json", "generation_config.json", "model.safetensors")),
            _Folder(sharded, _read_target, (index, "model-00001-of-00002.safetensors")),
            _Folder(single, _read_tokenizer, ("tokenizer.json", "tokenizer_config.json")),
            _Folder(eagle, lambda path: load_eagle(path, target), ("config.json", "model.safetensors")),
            _Folder(medusa, lambda path: load_medusa(path, target), ("config.json", "model.safetensors")),
            _Folder(speculator, lambda path: load_mlp_speculator(path, target), ("config.json", "model.safetensors")),
            _Folder(mixture, _read_target, ("config.json", "model.safetensors")),
        )
        self._kept = {
            (each.path, name): (each.path / name).read_bytes() for each in self._folders for name in each.files
        }
        for each in self._folders:
            each.read(each.path)

    def make(self, random: Random) -> bytes:
        """Which folder and file, and what stands at its beginning: the whole of a JSON file, the header of weights."""
        number = random.randrange(len(self._folders))
        place = random.randrange(len(self._folders[number].files))
        name = self._folders[number].files[place]
        content = self._kept[self._folders[number].path, name]
        if name.endswith(".json"):
            value = json.loads(content)
            for _ in range(random.choice((1, 1, 2, 4))):
                value = _member_changed(random, value)
            data = json.dumps(value).encode()
            return joined([bytes([number, place]), mutated(random, data) if random.random() < 0.15 else data])
        return joined([bytes([number, place]), _header(random, content)])

    def check(self, data: bytes) -> None:
        which, begin = [*parted(data, 2), b"", b""][:2]
        number, place = [*which[:2], 0, 0][:2]
        folder = self._folders[number % len(self._folders)]
        name = folder.files[place % len(folder.files)]
        kept = self._kept[folder.path, name]
        content = begin if name.endswith(".json") else begin + kept[_header_end(kept) :]
        (folder.path / name).write_bytes(content)
        try:
            folder.read(folder.path)
        except (CheckpointError, SlipstreamError) as error:
            if not str(error) or len(str(error)) > 4000:
                raise BrokenError(f"says {str(error)[:200]!r}") from error
        finally:
            (folder.path / name).write_bytes(kept)

    def settle(self) -> None:
        for each in self._folders:
            each.read(each.path)


def _member_changed(random: Random, value: Any) -> Any:
    """Mostly one member set to some value, as files that lie have it."""
    if isinstance(value, dict) and value and random.random() < 0.6:
        return value | {
            random.choice(list(value)): random.choice((leaf(random), random.choice(NUMBERS), 1e400, float("nan")))
        }
    return changed(random, value)


def _header_end(content: bytes) -> int:
    return _HEADER.size + _HEADER.unpack_from(content)[0]


def _header(random: Random, content: bytes) -> bytes:
    """The header of a file of safetensors, with a tensor of another kind, shape or place, or of another length."""
    end = _header_end(content)
    header = json.loads(content[_HEADER.size : end])
    kind = random.random()
    if kind < 0.7:
        name = random.choice(list(header))
        entry = header[name]
        if name != "__metadata__" and random.random() < 0.8:
            entry = dict(entry)
            field = random.choice(list(entry))
            entry[field] = changed(random, entry[field])
            if field == "dtype":
                entry[field] = random.choice(("F32", "F16", "I64", "BOOL", "U8", "F8_E4M3", "F4", "X", ""))
            header[name] = entry
        else:
            header = changed(random, header)
    data = json.dumps(header).encode()
    size = len(data) if kind < 0.85 else random.choice((*NUMBERS, 2**40, len(data) - 1, len(data) + 1))
    if kind > 0.95:
        data = mutated(random, data)
    return _HEADER.pack(size % 2**64) + data
