"""All targets by name. Each is imported when it is asked for: some bring torch, which others do without."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fuzz.target import Target

CLASSES = {
    "byte_ring": "ByteRings",
    "checkpoints": "Checkpoints",
    "draft_commands": "DraftCommands",
    "draft_exchange": "DraftExchange",
    "draft_link": "DraftLinkMessages",
    "gateway_messages": "GatewayMessages",
    "http_parser": "HttpParser",
    "openai_bodies": "OpenAiBodies",
    "shared_memory": "SharedMemory",
    "texts": "Texts",
    "tree_message": "TreeMessages",
    "verify_session": "VerifySession",
}
"""The class of each target in the module `fuzz.targets` of that name."""


def kind_of(name: str) -> type[Target]:
    """KeyError for a name that no target has."""
    kind: type[Target] = getattr(import_module(f"fuzz.targets.{name}"), CLASSES[name])
    return kind


def started(name: str, folder: Path) -> Target:
    """A target that has a folder of its own within `folder`."""
    own = folder / name
    own.mkdir(parents=True)
    return kind_of(name)(own)
