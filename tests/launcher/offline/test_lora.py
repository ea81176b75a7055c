"""Which adapters a call asks for, and which of them are loaded and unloaded for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.offline.lora import LoadedLoras, LoRARequest, LoraSettings, read_lora_requests
from slipstream.client import Client

ROOM = LoraSettings(2, 16)
RED, BLUE, GREEN = (LoRARequest(name, 1, f"/{name}") for name in ("red", "blue", "green"))


class Recorder:
    """Takes the calls of a client down."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def load_lora_adapter(self, name: str, path: str) -> None:
        self.calls.append(("load", name, path))

    def unload_lora_adapter(self, name: str) -> None:
        self.calls.append(("unload", name))


def test_room_is_what_the_arguments_say() -> None:
    arguments: dict[str, Any] = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64, "device": "cpu"}
    settings = LoraSettings.take(arguments)
    assert settings == LoraSettings(3, 64) and arguments == {"device": "cpu"}
    assert settings.verify_flags == ("--max-loras=3", "--max-lora-rank=64", "--lora-dir=/")
    assert settings.gateway_flags == ("--allow-lora-updates",)
    for off in ({}, {"enable_lora": False, "max_loras": 3}):
        assert not LoraSettings.take(off).slots and LoraSettings.take(off).verify_flags == ()
    assert LoraSettings.take({"enable_lora": True}) == LoraSettings(8, 16)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"enable_lora": 1}, TypeError, "LLM: enable_lora must be bool or None"),
        ({"max_loras": 0}, ValueError, "max_loras must be from 1 to 4096, got 0"),
        ({"max_lora_rank": 256}, ValueError, "max_lora_rank must be from 1 to 128, got 256"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        LoraSettings.take(arguments)


def test_one_is_for_all_prompts_and_a_list_has_one_for_each() -> None:
    assert read_lora_requests(None, 2, LoraSettings()) == [None, None]
    assert read_lora_requests(RED, 2, ROOM) == [RED, RED]
    others = SimpleNamespace(lora_name="red", lora_int_id=7, lora_path="/red", tensorizer_config_dict=None)
    assert read_lora_requests([others, None], 2, ROOM) == [LoRARequest("red", 7, "/red"), None]


@pytest.mark.parametrize(
    ("given", "settings", "error", "words"),
    [
        (RED, LoraSettings(), ValueError, "needs an LLM with enable_lora=True"),
        ([RED], ROOM, ValueError, "2 prompts, but 1 of lora_request"),
        ([RED, 5], ROOM, TypeError, r"lora_request\[1\] must be a LoRARequest with a lora_name, got int: 5"),
        (LoRARequest("red"), ROOM, TypeError, "with a lora_path"),
        (LoRARequest("a b", 1, "/a"), ROOM, ValueError, "lora_request.lora_name is 'a b'"),
        ([RED, LoRARequest("red", 2, "/other")], ROOM, ValueError, "'red' for two folders: /red and /other"),
    ],
)
def test_what_is_no_adapter_is_named(given: Any, settings: LoraSettings, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_lora_requests(given, 2, settings)


def test_what_was_not_used_for_longest_goes() -> None:
    recorder, loras = Recorder(), LoadedLoras(ROOM)
    client = cast(Client, recorder)
    assert loras.use(client, [RED, None, RED]) == ["red", "", "red"]
    loras.use(client, [BLUE])
    loras.use(client, [RED])
    loras.use(client, [GREEN])
    loras.use(client, [None])
    assert recorder.calls == [
        ("load", "red", "/red"),
        ("load", "blue", "/blue"),
        ("unload", "blue"),
        ("load", "green", "/green"),
    ]
    recorder.calls.clear()
    loras.use(client, [LoRARequest("red", 1, "/elsewhere")])
    assert recorder.calls == [("unload", "red"), ("load", "red", "/elsewhere")]
    with pytest.raises(ValueError, match="names 3 adapters, max_loras of this LLM is 2"):
        loras.use(client, [RED, BLUE, GREEN])
