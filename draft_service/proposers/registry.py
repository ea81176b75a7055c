"""Finds proposers: built-in ones, entry points of installed packages, and factories named on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from draft_service.proposers.base import Proposer, ProposerOptions
from draft_service.proposers.composite import Composite
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.speculation import PROPOSER_ENTRY_POINTS

Factory = Callable[[ProposerOptions], Proposer]

_BUILT_IN = {
    "eagle": "draft_service.proposers.eagle:create",
    "eagle3": "draft_service.proposers.eagle.eagle3:create",
    "hybrid": "draft_service.proposers.hybrid:create",
    "medusa": "draft_service.proposers.last_hidden_state.medusa:create",
    "mlp-speculator": "draft_service.proposers.last_hidden_state.mlp_speculator:create",
    "mtp": "draft_service.proposers.eagle.mtp:create",
    "ngram": "draft_service.proposers.ngram:create",
    "draft-model": "draft_service.proposers.draft_model:create",
    "suffix": "draft_service.proposers.suffix:create",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """One proposer as the operator wrote it: `NAME[:ARGUMENT]` or `NAME=module:factory[:ARGUMENT]`."""

    name: str
    factory: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> ProposerSpec:
        """Raises InvalidArgumentError for text of neither form."""
        name, equals, rest = text.partition("=")
        if not equals or ":" in name:
            name, _, argument = text.partition(":")
            factory = ""
        else:
            module, _, rest = rest.partition(":")
            function, _, argument = rest.partition(":")
            factory = f"{module}:{function}"
            if not module or not function:
                raise InvalidArgumentError(
                    f"proposer {text!r}: write NAME[:ARGUMENT] or NAME=module:factory[:ARGUMENT]", field="proposers"
                )
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"proposer name {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores",
                field="proposers",
            )
        return cls(name, factory, argument)


def find_factory(spec: ProposerSpec) -> Factory:
    """The factory a spec names. Raises InvalidArgumentError if there is none."""
    try:
        if spec.factory:
            _search_working_folder()
            return _resolve(spec.factory)
        if spec.name in _BUILT_IN:
            return _resolve(_BUILT_IN[spec.name])
        for entry in entry_points(group=PROPOSER_ENTRY_POINTS, name=spec.name):
            loaded: Factory = entry.load()
            return loaded
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"proposer {spec.name}: {error}", field="proposers") from error
    raise InvalidArgumentError(
        f"no proposer named {spec.name!r}; built in are {', '.join(sorted(_BUILT_IN))}, others come from packages "
        f"with an entry point in group {PROPOSER_ENTRY_POINTS}",
        field="proposers",
    )


def load_proposers(
    specs: Sequence[ProposerSpec],
    *,
    threads: int,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    top_k: int | None = None,
    device: str = "cpu",
    token_map: str = "",
) -> list[Proposer]:
    """Build every proposer, in order, and let those that combine others know them; `device` is cpu or cuda:N.

    The limits, device and token map are those of `ProposerOptions`.

    Raises InvalidArgumentError for unknown or repeated names.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"proposer names repeat: {', '.join(names)}", field="proposers")
    proposers = {
        spec.name: find_factory(spec)(
            ProposerOptions(
                spec.name,
                spec.argument,
                threads,
                max_nodes=max_nodes,
                max_depth=max_depth,
                top_k=top_k,
                device=device,
                token_map=token_map,
            )
        )
        for spec in specs
    }
    for name, proposer in proposers.items():
        if isinstance(proposer, Composite):
            proposer.join({other: proposers[other] for other in names if other != name})
    return list(proposers.values())


def _search_working_folder() -> None:
    """Let an operator's own module lie there. It comes last, so that nothing there hides an installed module."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def _resolve(path: str) -> Factory:
    module, _, function = path.partition(":")
    factory: Factory = getattr(import_module(module), function)
    return factory
