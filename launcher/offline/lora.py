"""LoRA adapters of an `LLM`: named by requests, loaded when they are first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.offline.argument_checks import check_type
from slipstream.adapter_names import check_adapter_name
from slipstream.client import Client
from slipstream.rpc.errors import InvalidArgumentError

ADAPTERS: Final = 8
"""How many can be loaded at a time, unless `max_loras` says so."""
MOST_RANK: Final = 128
RANK: Final = 16


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter that prompts are completed with: its name, and its folder as PEFT saves it.

    `lora_int_id` is vLLM's number of it, which decides nothing here.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """How many adapters there is room for, 0: none, and their largest rank."""

    slots: int = 0
    rank: int = RANK

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> LoraSettings:
        """From `enable_lora`, `max_loras` and `max_lora_rank`, which are taken out of the arguments of an `LLM`.

        TypeError, ValueError.
        """
        owner = "LLM"
        enabled = arguments.pop("enable_lora", None)
        check_type(owner, "enable_lora", enabled, bool, optional=True)
        numbers = {}
        for name, low, high, default in (("max_loras", 1, 4096, ADAPTERS), ("max_lora_rank", 1, MOST_RANK, RANK)):
            value = arguments.pop(name, None)
            check_type(owner, name, value, int, optional=True)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{owner}: {name} must be from {low} to {high}, got {value!r}")
            numbers[name] = default if value is None else int(value)
        return cls(numbers["max_loras"], numbers["max_lora_rank"]) if enabled else cls()

    @property
    def verify_flags(self) -> tuple[str, ...]:
        """What makes room for them, wherever on this machine they are."""
        if not self.slots:
            return ()
        root = str(Path("/").resolve())
        return (f"--max-loras={self.slots}", f"--max-lora-rank={self.rank}", f"--lora-dir={root}")

    @property
    def gateway_flags(self) -> tuple[str, ...]:
        return ("--allow-lora-updates",) if self.slots else ()


class LoadedLoras:
    """Those that the services of an `LLM` have loaded. One call at a time may use it."""

    def __init__(self, settings: LoraSettings) -> None:
        self._settings = settings
        self._loaded: dict[str, str] = {}  # folder by name, the one that was used last at the end

    def use(self, client: Client, requests: Sequence[LoRARequest | None]) -> list[str]:
        """The names by which prompts ask for their adapters, "" for none, once all of these are loaded.

        Those that were not used for longest go where there is no room. Raises ValueError for more than there is room
        for, and the errors of `Client.load_lora_adapter`.
        """
        wanted = {each.lora_name: str(Path(each.lora_path).resolve()) for each in requests if each is not None}
        if len(wanted) > self._settings.slots:
            raise ValueError(
                f"generate: lora_request names {len(wanted)} adapters, max_loras of this LLM is {self._settings.slots}"
            )
        for name in [name for name, path in self._loaded.items() if wanted.get(name, path) != path]:
            self._unload(client, name)
        for name, path in wanted.items():
            if name in self._loaded:
                self._loaded[name] = self._loaded.pop(name)
                continue
            if len(self._loaded) == self._settings.slots:
                self._unload(client, next(each for each in self._loaded if each not in wanted))
            client.load_lora_adapter(name, path)
            self._loaded[name] = path
        return ["" if each is None else each.lora_name for each in requests]

    def _unload(self, client: Client, name: str) -> None:
        client.unload_lora_adapter(name)
        del self._loaded[name]


def read_lora_requests(given: Any, count: int, settings: LoraSettings) -> list[LoRARequest | None]:
    """One for each of `count` prompts, from one for all of them, a list of them, or None. TypeError, ValueError."""
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        if len(given) != count:
            raise ValueError(f"{count} prompts, but {len(given)} of lora_request")
        read = [None if each is None else _read(f"lora_request[{index}]", each) for index, each in enumerate(given)]
    else:
        read = [None if given is None else _read("lora_request", given)] * count
    named = [each for each in read if each is not None]
    if named and not settings.slots:
        raise ValueError("generate: lora_request needs an LLM with enable_lora=True")
    _check_folders(named)
    return read


def _read(field: str, given: Any) -> LoRARequest:
    """Ours, or another library's of the same fields."""
    values: Mapping[str, Any] = {name: getattr(given, name, None) for name in ("lora_name", "lora_int_id", "lora_path")}
    for name in ("lora_name", "lora_path"):
        if not isinstance(values[name], str) or not values[name]:
            raise TypeError(f"{field} must be a LoRARequest with a {name}, got {type(given).__name__}: {given!r:.200}")
    try:
        check_adapter_name(values["lora_name"], f"{field}.lora_name")
    except InvalidArgumentError as error:
        raise ValueError(error.message) from error
    return LoRARequest(values["lora_name"], values["lora_int_id"] or 1, values["lora_path"])


def _check_folders(requests: Sequence[LoRARequest]) -> None:
    folders: dict[str, str] = {}
    for each in requests:
        if folders.setdefault(each.lora_name, each.lora_path) != each.lora_path:
            raise ValueError(
                f"lora_request names {each.lora_name!r} for two folders: {folders[each.lora_name]} and {each.lora_path}"
            )
