"""Settings of the draft service."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from draft_service.proposers.registry import ProposerSpec
from draft_service.protocol.codec import CUDA_IPC, TRANSPORTS
from draft_service.protocol.placement import Placement
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.rpc.logs import LogFormat
from slipstream.settings import Names, load
from slipstream.speculation.reading import json_text, parse
from slipstream.transport_settings import TransportSettings
from slipstream_kernels.draft_protocol.proposer_host import BOUNDARY_CHECK_MIB

GPU_SPIN_MS = 10.0
"""Longer than most rounds take."""


def _lockstep(mode: str) -> str:
    if mode != "lockstep":
        raise ValueError("leave the flag out, as trees are no longer made ahead of the step that they are for")
    return mode


def _parsed(specs: tuple[str, ...]) -> tuple[str, ...]:
    try:
        names = [ProposerSpec.parse(spec).name for spec in specs]
    except InvalidArgumentError as error:
        raise ValueError(error.message) from error
    if not names:
        raise ValueError("at least one proposer is needed")
    if len(set(names)) != len(names):
        raise ValueError("proposer names repeat")
    return specs


def _spoken(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) != len(names) or not set(names) <= set(TRANSPORTS):
        raise ValueError(f"must be some of {', '.join(TRANSPORTS)}, each once")
    return names


def _configured(given: str) -> str:
    text = json_text(given) if given else ""
    if text:
        configs = parse(text)
        if any(config.inproc for config in configs):
            raise ValueError("inproc is for whoever starts the verify service, too, as `slipstream serve` does")
        _parsed(tuple(config.spec for config in configs))
    return text


class DraftSettings(TransportSettings):
    """Host proposers, and draft token trees for the requests of a verify service."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_DRAFT_")

    verify: str = Field(
        default="127.0.0.1:50052", min_length=1, description="Address of the verify service, host:port or unix:PATH"
    )
    host: str = Field(default="127.0.0.1", description="Address to serve health and administration on")
    port: int = Field(default=50053, ge=0, le=65535, description="Port of that server; 0 binds a free one")
    advertise: str = Field(
        default="",
        pattern=r"^$|^([^\s:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?$",
        max_length=256,
        description="By what name or address others, such as `slipstream info`, reach that server; default: --host, or "
        "the address that the verify service sees where --host is all of them",
        json_schema_extra={"metavar": "HOST[:PORT]"},
    )
    proposers: Annotated[Names, AfterValidator(_parsed)] = Field(
        default=("ngram",),
        description="What to host: NAME[:ARGUMENT], such as ngram or draft-model:DIR, or "
        "NAME=module:factory[:ARGUMENT]; repeat the flag (--proposer is the same) or separate by commas",
    )
    speculative_config: Annotated[str, AfterValidator(_configured)] = Field(
        default="",
        description="What to host instead, as JSON or the name of a file with JSON: an object as vLLM's "
        "speculative_config, or a list of them (docs/proposers.md)",
    )
    name: str = Field(default="draft", max_length=64, description="How this service is known to operators")
    threads: int = Field(default=1, ge=1, le=256, description="CPU threads of the proposers")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where proposers that can use a GPU compute: cpu, cuda, cuda:N; auto: the first GPU, else the CPU",
    )
    boundary_check: bool = Field(
        default=True,
        description="Whether proposers that read hidden states and name their target's folder are tried with states of "
        "the layers above and below before they serve, for which the target's weights are read once",
    )
    boundary_check_mib: int = Field(
        default=BOUNDARY_CHECK_MIB,
        ge=1,
        le=2**24,
        description="Weights of the largest target that is read for that, in MiB",
    )
    max_nodes: int | None = Field(
        default=None, ge=2, le=64, description="Rows of the largest tree, root included; default: the proposer's"
    )
    max_depth: int | None = Field(default=None, ge=1, le=63, description="Longest path; default: the proposer's")
    topk: int | None = Field(
        default=None, ge=1, le=16, description="Children of a tree node; 1 makes chains; default: the proposer's"
    )
    token_map: str = Field(
        default="",
        description="File of frequent tokens, as FR-Spec's freq_*.pt: the only ones that proposers score which have a "
        "token_map and name none; default: all",
    )
    transports: Annotated[Names, AfterValidator(_spoken)] = Field(
        default=TRANSPORTS,
        description="Ways to exchange records with verify that may be taken: cuda_ipc (as shm, but hidden states stay "
        "on verify's GPU; where --device is one too), shm (on this host), grpc; verify's order of preference counts",
    )
    share: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Part of the requests to draft for, where others offer the same proposers; default: all",
    )
    mode: Annotated[str, AfterValidator(_lockstep)] = Field(
        default="lockstep", description="Deprecated: lockstep, which is how it drafts without the flag as well"
    )
    spin_ms: float | None = Field(
        default=None,
        ge=0.0,
        le=1000.0,
        allow_inf_nan=False,
        description="How long after a record the next one is looked for in shared memory without sleeping, which takes "
        f"a core while requests run and saves waking up; default: {GPU_SPIN_MS:g} with a GPU, 0 without",
    )
    attach_token: str = Field(default="", description="Shared secret that verify asks for beyond loopback")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="Port of Prometheus metrics; 0: none")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged")
    log_format: LogFormat = Field(default="text", description="Log lines: text, or json for one JSON object a line")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.speculative_config and "proposers" in self.model_fields_set:
            raise ValueError("--proposers and --speculative-config exclude each other")
        return self

    def address(self, port: int) -> str:
        """Where others reach this service's own server, which is bound to `port`."""
        if self.unix_socket and not self.advertise:
            return self.unix_socket.address
        host = self.advertise or (f"[{self.host}]" if ":" in self.host else self.host)
        return host if re.search(r":\d+$", host) and not host.endswith("]") else f"{host}:{port}"

    def offered(self, placement: Placement) -> tuple[str, ...]:
        """The transports, of those that nobody named only such as fit the placement."""
        named = "transports" in self.model_fields_set or placement.on_gpu
        return tuple(name for name in self.transports if named or name != CUDA_IPC)

    def spin(self, placement: Placement) -> float:
        """Seconds of `spin_ms`."""
        default = GPU_SPIN_MS if placement.on_gpu else 0.0
        return (default if self.spin_ms is None else self.spin_ms) / 1000

    @property
    def hosted(self) -> tuple[ProposerSpec, ...]:
        """The proposers, in either form, in order."""
        configured = tuple(config.spec for config in parse(self.speculative_config)) if self.speculative_config else ()
        return tuple(map(ProposerSpec.parse, configured or self.proposers))


def load_settings(argv: list[str] | None = None) -> DraftSettings:
    """Settings from `argv` (default: the process's), environment and file; bad ones end the process with status 2."""
    arguments = sys.argv[1:] if argv is None else argv
    return load(DraftSettings, "draft_service", [re.sub(r"^--proposer(?=$|=)", "--proposers", a) for a in arguments])
