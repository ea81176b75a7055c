"""The configuration of one proposer, and the argument of the draft service that it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_TREE = frozenset({"num_speculative_tokens", "max_depth", "max_nodes"})
_ROOM = frozenset({"chunk", "max_context", "max_sessions"})
_HEAD = _TREE | _ROOM | {"model", "top_k", "target", "boundaries", "token_map", "max_tokens"}
PARAMETERS: dict[str, frozenset[str]] = {
    "ngram": _TREE | {"prompt_lookup_max", "prompt_lookup_min", "max_matches", "trust"},
    "suffix": _TREE
    | {"max_tree_depth", "max_spec_factor", "max_spec_offset", "min_token_prob", "mode"}
    | {"max_cached_requests", "max_cached_tokens"},
    "hybrid": _TREE | {"members", "memory"},
    "draft-model": _TREE
    | _ROOM
    | {"model", "top_k", "token_map"}
    | {"max_cached_tokens", "max_cached_bytes", "page_size", "group"},
    "eagle": _HEAD,
    "eagle3": _HEAD,
    "medusa": _TREE | {"model", "top_k", "target", "boundaries", "token_map", "max_sessions"},
    "mlp-speculator": _TREE | {"model", "top_k", "target", "boundaries", "token_map", "max_sessions"},
    "mtp": _HEAD | {"feedback"},
}
"""Fields of SpeculativeConfig that each of our proposers takes, beside `method`, `inproc` and
`draft_tensor_parallel_size`."""


def _plain(path: str) -> str:
    if not path or ":" in path or "," in path:
        raise ValueError("must be a path without colons and commas, which separate arguments")
    return path


PlainPath = Annotated[str, AfterValidator(_plain)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Boundary = Annotated[int, Field(ge=0)]


class SpeculativeConfig(BaseModel):
    """One proposer; None stands for what it chooses itself. `reading` makes these.

    method: our name of the proposer, or NAME=module:factory. model: folder of its weights; for a proposer of another
    package its argument. target: folder of the model that is served. num_speculative_tokens: tokens of the longest
    path, and one row less than the tree has where `max_nodes` does not say otherwise. max_nodes: rows of the tree, the
    root included. max_depth: tokens of the longest path. inproc: whether it runs in the verify service's process, which
    whoever starts both services sees to. The rest is documented with the proposers that take it.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    method: str
    model: PlainPath | None = None
    target: PlainPath | None = None
    draft_tensor_parallel_size: int = Field(default=1, ge=1, le=1)
    inproc: bool = False
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=63)
    max_depth: int | None = Field(default=None, ge=1, le=63)
    max_nodes: int | None = Field(default=None, ge=2, le=64)
    top_k: int | None = Field(default=None, ge=1, le=16)
    prompt_lookup_max: int | None = Field(default=None, ge=1, le=64)
    prompt_lookup_min: int | None = Field(default=None, ge=1, le=64)
    max_matches: int | None = Field(default=None, ge=1)
    trust: int | None = Field(default=None, ge=1)
    max_tree_depth: int | None = Field(default=None, ge=2, le=250)
    max_spec_factor: float | None = Field(default=None, ge=0, le=64)
    max_spec_offset: float | None = Field(default=None, ge=-64, le=64)
    min_token_prob: float | None = Field(default=None, ge=0, le=1)
    max_cached_requests: int | None = Field(default=None, ge=0)
    max_cached_tokens: int | None = Field(default=None, ge=1, le=100_000_000)
    mode: Literal["tree", "path"] | None = None
    members: list[Name] | None = Field(default=None, min_length=1)
    memory: float | None = Field(default=None, ge=10)
    boundaries: list[Boundary] | None = Field(default=None, min_length=1)
    token_map: PlainPath | None = None
    feedback: Literal["pre-norm", "post-norm"] | None = None
    chunk: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_context: int | None = Field(default=None, ge=2)
    max_sessions: int | None = Field(default=None, ge=1)
    max_cached_bytes: int | None = Field(default=None, ge=1)
    page_size: int | None = Field(default=None, ge=1)
    group: int | None = Field(default=None, ge=1)

    @property
    def name(self) -> str:
        """How requests name the proposer."""
        return self.method.partition("=")[0]

    @property
    def depth(self) -> int | None:
        """Longest path of the tree, in tokens."""
        return self.max_depth or self.num_speculative_tokens

    @property
    def rows(self) -> int | None:
        """Rows of the tree, the root included."""
        return self.max_nodes or (self.num_speculative_tokens + 1 if self.num_speculative_tokens else None)

    @property
    def spec(self) -> str:
        """The proposer as the draft service's command line names it, `NAME[:MODEL][:KEY=VALUE...]`.

        ValueError if it needs a folder and has none.
        """
        if self.model is None and "model" in PARAMETERS.get(self.method, ()):
            raise ValueError(f"{self.name} needs a model, the folder of its weights")
        elsewhere = {"method", "model", "members", "boundaries", "draft_tensor_parallel_size", "inproc"}
        values: dict[str, Any] = self.model_dump(exclude_none=True, exclude=elsewhere | _TREE)
        values |= {"max_depth": self.depth, "max_nodes": self.rows}
        values["boundaries"] = "-".join(map(str, self.boundaries or ()))
        first = (self.model, "+".join(self.members or ()))
        pairs = (f"{name}={value}" for name, value in values.items() if value not in (None, ""))
        return ":".join([self.method, *filter(None, first), *pairs])

    def serving(self, target: Path) -> SpeculativeConfig:
        """With the folder of the model that is served, where the proposer reads it and none is named. ValueError.

        MTP layers lie in that folder itself, if no other is named.
        """
        if self.method == "mtp" and self.model is None:
            return self.with_path("model", target)
        if self.target is not None or "target" not in PARAMETERS.get(self.method, ()):
            return self
        return self.with_path("target", target)

    def with_path(self, field: str, path: Path) -> SpeculativeConfig:
        """With another path in `field`. ValueError for one that no argument can carry."""
        try:
            return self.model_copy(update={field: _plain(str(path))})
        except ValueError as error:
            raise ValueError(f"{field}: {error}, got {str(path)!r}") from error
