"""LoRA adapters by name: those of the command line, and those that are asked for while the service runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from slipstream.adapter_names import adapter_id, check_adapter_name
from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    SlipstreamError,
)
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.checkpoint.adapter.pace import Pace
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from verify_service.core.adapters import Adapter, AdapterList
from verify_service.engine.adapter_host import AdapterHost

_log = logging.getLogger(__name__)

FLAG = "--lora-modules"


class AdapterLoader:
    """May be used by any thread but the verify loop's."""

    def __init__(
        self, host: AdapterHost, config: ModelConfig, *, model_name: str, folder: Path | None, most_rank: int
    ) -> None:
        """`folder`: below which adapters may be asked for; None: nowhere."""
        self._host = host
        self._config = config
        self._model_name = model_name
        self._folder = folder
        self.most_rank = most_rank

    @property
    def most(self) -> int:
        """How many can be loaded at a time."""
        return self._host.num_slots

    @property
    def loaded(self) -> AdapterList:
        """Those that requests may name."""
        return self._host.loaded.listed

    def load_named(self, modules: Sequence[tuple[str, Path]]) -> None:
        """Load those of the command line. Raises FailedPreconditionError that names the flag, once the loop runs."""
        for name, path in modules:
            try:
                self._load(check_adapter_name(name, "the name"), path, None)
            except SlipstreamError as error:
                raise FailedPreconditionError(f"{FLAG} {name}={path}: {error.message}") from error

    def load(self, name: str, path: str) -> Adapter:
        """Load what a client asks for; blocks until requests may name it.

        Raises PermissionDeniedError where the operator has named no folder, InvalidArgumentError for a name or folder
        that will not do, and errors of `AdapterHost.install`.
        """
        if self._folder is None:
            raise PermissionDeniedError("adapters are loaded at run time only from a folder that --lora-dir names")
        check_adapter_name(name, "name")
        root = self._folder.resolve()
        try:
            folder = (root / path).resolve()
            inside = folder != root and folder.is_relative_to(root) and folder.is_dir()
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise InvalidArgumentError(
                f"path is {path[:200]!r}, must be a folder below that of the server's adapters", field="path"
            )
        return self._load(name, folder, Pace())

    def unload(self, name: str) -> Future[None]:
        """See `AdapterHost.remove`."""
        _log.info("adapter %r goes", name[:200])
        return self._host.remove(name)

    def _load(self, name: str, path: Path, pace: Pace | None) -> Adapter:
        if name == self._model_name:
            raise InvalidArgumentError(f"name is {name!r}, which is the model's own", field="name")

        def read() -> tuple[str, LoraAdapter]:
            if not path.is_dir():
                raise InvalidArgumentError(f"there is no folder {path}", field="path")
            try:
                adapter = read_adapter(path, self._config, self.most_rank, pace)
            except CheckpointError as error:
                raise InvalidArgumentError(str(error), field="path") from error
            return adapter_id(name, adapter.fingerprint), adapter

        adapter = self._host.install(name, str(path), read)
        _log.info("adapter %s of rank %d serves from %s", adapter.id, adapter.rank, path)
        return adapter
