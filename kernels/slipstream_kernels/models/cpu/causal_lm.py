"""A causal language model with paged KV, on the device it was loaded to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.threads import Team
from slipstream_kernels.models.capture_layers import Capture
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.checkpoint.load_warnings import tell
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_weights, quantised_elements, weight_bytes
from slipstream_kernels.models.cpu.adapter_table import PackedAdapter, pack_adapter
from slipstream_kernels.models.cpu.backend import CpuBackend
from slipstream_kernels.models.cpu.host_memory import available_bytes
from slipstream_kernels.models.cpu.paged_kv import PagedKV
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.kv_form import FLOAT, KVForm

_BACKENDS = {"cpu": CpuBackend}


class CausalLM:
    """A decoder of the Llama family. Rows of a pass never influence one another beyond the KV they share."""

    __slots__ = ("_backend", "config", "kv_form")

    def __init__(self, config: ModelConfig, backend: CpuBackend, kv_form: KVForm = FLOAT) -> None:
        self.config = config
        self.kv_form = kv_form
        self._backend = backend

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str = "cpu",
        threads: int = 2,
        scored: torch.Tensor | None = None,
        kv_form: KVForm = FLOAT,
    ) -> CausalLM:
        """Read a Hugging Face folder. Raises CheckpointError, or ValueError for an unknown device.

        scored: int64 [entries], the only tokens that a pass gives logits of, in this order; None: all. kv_form: how
        caches of the model hold keys and values.
        """
        if device not in _BACKENDS:
            raise ValueError(f"device is {device!r}, supported are {', '.join(_BACKENDS)}")
        config = ModelConfig.from_folder(path)
        _check_memory(path, config)
        tell(path, config)
        return cls(config, _BACKENDS[device](config, load_weights(path, config), threads, scored), kv_form)

    @property
    def team(self) -> Team:
        """The threads that run the passes; other kernels may borrow them between passes."""
        return self._backend.team

    def new_cache(self, *, num_pages: int, page_size: int, scratch_slots: int) -> PagedKV:
        """An empty cache of this model's shape."""
        return PagedKV(
            layers=self.config.num_layers,
            kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            num_pages=num_pages,
            page_size=page_size,
            scratch_slots=scratch_slots,
            form=self.kv_form,
        )

    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one slot."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * self.kv_form.row_bytes(config.head_dim, 4)

    def forward(self, cache: PagedKV, rows: RowBatch, capture: Capture | None = None) -> npt.NDArray[np.float32]:
        """Write the rows' keys and values into `cache`; float32 logits [len(logit_rows), entries].

        There is an entry for each token of the vocabulary, or for each that is scored. `capture`, made for this model
        and as many rows, takes their states at boundaries; the logits stay the same. The logits' rows are contiguous
        but may lie further apart than that. Raises ValueError for a plan that points outside the vocabulary, the
        context, the page table or the cache; then nothing was written.
        """
        return self._backend.forward(cache, rows, capture)

    @property
    def experts_awake(self) -> int:
        """Experts that the last pass has computed with, over all layers; 0 of a model without."""
        return self._backend.experts_awake

    def last_logits(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Logits of rows of the last pass, int32 [n] in any order, as `forward` gives them; before there is another.

        The bits are those that `forward` would have given. Raises ValueError for rows that it did not have.
        """
        return self._backend.last_logits(rows)

    def reserve_adapters(self, slots: int) -> None:
        """Have room for so many LoRA adapters, all slots empty. To be called before any pass."""
        self._backend.reserve_adapters(slots)

    def pack_adapter(self, adapter: LoraAdapter, slot: int) -> PackedAdapter:
        """What `install_adapter` takes, made of weights that fit the model. May run beside passes, in any thread."""
        return pack_adapter(self.config, adapter)

    def install_adapter(self, slot: int, adapter: PackedAdapter) -> None:
        """Fill a free slot, which rows of the next pass may name. Raises ValueError for one that is taken."""
        self._backend.install_adapter(slot, adapter)

    def remove_adapter(self, slot: int) -> None:
        """Free a slot, which no row may name from the next pass on."""
        self._backend.remove_adapter(slot)

    def warm_up(self) -> None:
        """Compile, or read from the disk cache, every kernel of a pass. CheckpointError if logits are no numbers."""
        cache = self.new_cache(num_pages=1, page_size=8, scratch_slots=0)
        logits = self.forward(cache, RowBatch.chunk([0] * min(8, self.config.max_context), 0, [0], 8))
        if not np.isfinite(logits).all():
            raise CheckpointError("the logits of a first pass are not finite numbers: weights hold NaN or infinity")


def _check_memory(path: Path, config: ModelConfig) -> None:
    """Raises CheckpointError where packed weights and the table of positions exceed what there is.

    Files are mapped, and their pages given back as they are needed. Packed weights have two bytes an element, and those
    converted from four bytes have two more as they are packed: what the file has, either way. Quantised weights are
    decoded to two bytes an element.
    """
    weights, table = (
        weight_bytes(path, config) + 2 * quantised_elements(config),
        4 * config.max_context * (len(config.ropes) * config.head_dim + len(config.temperatures)),
    )
    room = available_bytes()
    if weights + table > room:
        raise CheckpointError(
            f"{path}: loading takes {weights >> 20} MiB for weights and {table >> 20} MiB for a context of "
            f"{config.max_context} tokens (max_position_embeddings), {room >> 20} MiB are available"
        )
