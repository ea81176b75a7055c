"""Names of LoRA adapters, and the ids that tell one content under a name from another.

An id is the name, an @, and the first 32 hexadecimal digits of the sha256 over the adapter's content. Where an adapter
decides on tokens, as in keys of the prefix cache, its id stands.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from slipstream.rpc.errors import InvalidArgumentError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_DIGITS: Final = 32


def check_adapter_name(name: str, field: str) -> str:
    """The name. Raises InvalidArgumentError unless it is 1 to 128 letters, digits and _.:/- after a first of these."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{field} is {name[:200]!r}, must be 1 to 128 letters, digits and _.:/- that begin with a letter or digit",
            field=field,
        )
    return name


def adapter_id(name: str, fingerprint: str) -> str:
    """The id of a name and the sha256, in hexadecimal, of an adapter's content."""
    return f"{name}@{fingerprint[:_DIGITS]}"


def adapted_fingerprint(model: str, identity: str) -> str:
    """What stands for a model's fingerprint where an adapter of this id decides on tokens, too; "": none does."""
    _, _, content = identity.partition("@")
    return hashlib.sha256(f"{model} {content}".encode()).hexdigest() if content else model


def adapter_name(name_or_id: str) -> str:
    """The name in an id, or the name itself."""
    return name_or_id.partition("@")[0]
