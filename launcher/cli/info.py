"""`slipstream info`: what runs, what is attached to what, and the process ids."""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import grpc
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from launcher.services.commands import join_address, split_address
from launcher.services.gateway_health import GatewayStatusError, read_health
from launcher.services.tls_files import TlsFiles
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.rpc.unix_socket import is_unix
from slipstream.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc

TIMEOUT_SECONDS = 10.0
LINE_WIDTH = 160
"""Lines are not broken before this column, so that they can be searched."""


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """The gateway, as its HTTP side answers. `status` is "unreachable" where nothing does."""

    address: str
    status: str
    process_id: int | None = None


@dataclass(frozen=True, slots=True)
class ProposerFacts:
    """One proposer as the verify service sees it."""

    name: str
    configured: bool
    attached: bool
    default: bool
    process_id: int | None
    address: str
    transport: str
    epoch: int | None
    device: str = ""
    gpu_uuid: str = ""
    transport_reason: str = ""
    """Why its records do not travel in the best way; empty if they do."""
    overlap: str = ""
    """How drafting and verification overlap, and why not better; empty where that is not told."""


@dataclass(frozen=True, slots=True)
class RefusalFacts:
    """A proposer that a draft service has and does not draft with, and why."""

    proposer: str
    reason: str
    name: str
    address: str
    process_id: int


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """A LoRA adapter that the verify service holds, and the requests that use it; `requests` since it was loaded."""

    name: str
    id: str
    rank: int
    path: str
    leaving: bool
    running: int
    waiting: int
    requests: int


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """A draft service, found through what is attached, or was refused."""

    address: str
    status: str
    process_id: int | None = None
    verify_address: str = ""
    proposers: tuple[str, ...] = ()
    sessions: int = 0
    trees_sent: int = 0
    refusal: str = ""
    """Why it is not attached, in its own words."""


@dataclass(frozen=True, slots=True)
class VerifyFacts:
    """The verify service, its limits and its counters."""

    address: str
    status: str
    process_id: int | None = None
    model: str = ""
    model_path: str = ""
    fingerprint: str = ""
    mode: str = ""
    device: str = ""
    gpu_uuid: str = ""
    max_context: int = 0
    max_nodes: int = 0
    page_size: int = 0
    kv_cache_dtype: str = ""
    proposers: tuple[ProposerFacts, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    drafters: tuple[dict[str, Any], ...] = ()
    """The counters of each proposer of each attachment."""
    refusals: tuple[RefusalFacts, ...] = ()
    max_adapters: int = 0
    max_adapter_rank: int = 0
    adapters: tuple[AdapterFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything one look found."""

    gateway: GatewayFacts
    verify: VerifyFacts
    drafts: tuple[DraftFacts, ...]

    @property
    def complete(self) -> bool:
        """Whether every service that was asked has answered, and no proposer of a draft service is refused."""
        statuses = (self.gateway.status, self.verify.status, *(draft.status for draft in self.drafts))
        return "unreachable" not in statuses and not self.verify.refusals


def collect(verify_address: str, gateway_address: str, files: TlsFiles | None = None) -> Facts:
    """Ask the services, the gateway as `read_health` does.

    One that does not answer is reported as such and not an error.
    """
    tls = files.read() if files else None
    verify = _ask_verify(verify_address, tls)
    attached = (each.address for each in verify.proposers if each.attached)
    told = filter(None, (*attached, *(each.address for each in verify.refusals)))
    addresses = dict.fromkeys(from_here(address, verify_address) for address in told)
    drafts = tuple(_ask_draft(address, tls) for address in addresses)
    return Facts(_ask_gateway(gateway_address, files), verify, drafts)


def from_here(address: str, verify_address: str) -> str:
    """An address on the verify service's own host as it is to be dialled from here."""
    try:
        (host, port), there = split_address(address), split_address(verify_address)[0]
        own = ipaddress.ip_address(host)
    except ValueError:
        return address
    beside_verify = own.is_unspecified or (own.is_loopback and not _is_loopback(there))
    return join_address(there, port) if beside_verify else address


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def render(facts: Facts, *, as_json: bool) -> None:
    """Print the facts: a tree for people, or one JSON document."""
    if as_json:
        json.dump(asdict(facts), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    root = Tree(_line("gateway", facts.gateway.address, facts.gateway.status, facts.gateway.process_id))
    branch = root.add(_line("verify", facts.verify.address, facts.verify.status, facts.verify.process_id))
    if facts.verify.status != "unreachable":
        _add_verify(branch, facts.verify)
    for draft in facts.drafts:
        leaf = branch.add(_line("draft", draft.address, draft.status, draft.process_id))
        leaf.add(f"sessions {draft.sessions}, trees sent {draft.trees_sent}")
        if draft.refusal:
            leaf.add(f"not attached: {escape(draft.refusal)}")
    width = max(Console().width, LINE_WIDTH)
    Console(highlight=False, width=width).print(root)


def _add_verify(branch: Tree, verify: VerifyFacts) -> None:
    branch.add(f"model {verify.model} ({verify.model_path}), {verify.mode} on {_place(verify.device, verify.gpu_uuid)}")
    state = verify.state
    branch.add(
        f"running {state['running']}, queued {state['queued']}, "
        f"KV pages{_held(verify.kv_cache_dtype)} {state['pages_free']} free of {state['pages_total']}"
    )
    drafted = state["drafted_tokens"]
    share = f" ({state['accepted_tokens'] / drafted:.0%})" if drafted else ""
    branch.add(
        f"steps {state['steps']}, tokens {state['committed_tokens']}, drafted {drafted}, "
        f"accepted {state['accepted_tokens']}{share}"
    )
    if verify.max_adapters:
        _add_adapters(branch, verify)
    for proposer in verify.proposers:
        default = ", the default" if proposer.default else ""
        if proposer.attached:
            device = f", on {_place(proposer.device, proposer.gpu_uuid)}" if proposer.device else ""
            why = f" ({proposer.transport_reason})" if proposer.transport_reason else ""
            place = f"attached, epoch {proposer.epoch}, {proposer.transport}{why}{device}, pid {proposer.process_id}"
            place += f", {proposer.overlap}" if proposer.overlap else ""
            place += default
        else:
            place = f"not attached{default}; its requests are decoded plainly until it is"
        branch.add(f"proposer {proposer.name}: {place}")
    for refused in verify.refusals:
        where = f"{refused.name} {refused.address} pid {refused.process_id}"
        branch.add(f"[red]refused[/red] {escape(refused.proposer)} of {escape(where)}: {escape(refused.reason)}")
    for drafter in verify.drafters:
        drafted, accepted = drafter["drafted_tokens"], drafter["accepted_tokens"]
        branch.add(
            f"epoch {drafter['epoch']} drafts {drafter['proposer']} for {drafter['requests']} requests: "
            f"drafted {drafted}, accepted {accepted}"
            f"{f' ({accepted / drafted:.0%})' if drafted else ''}"
        )
        figures = "  trees: {hits} hits, {waits} waits, {misses} missed, {late} late; {stale_records} stale records"
        branch.add(figures.format_map(drafter))
        taking = f"take {drafter['answer_us'] / 1000:.1f} ms, and " if drafter["answer_us"] else ""
        branch.add(f"  they {taking}are waited for up to {drafter['deadline_us'] / 1000:.1f} ms")
        for source in drafter["sources"]:
            branch.add(f"  of them from {source['proposer']}: {source['drafted']}, accepted {source['accepted']}")


def _add_adapters(branch: Tree, verify: VerifyFacts) -> None:
    held = len(verify.adapters)
    branch.add(f"adapters: {held} of at most {verify.max_adapters}, up to rank {verify.max_adapter_rank}")
    for each in verify.adapters:
        leaving = ", to go once they end" if each.leaving else ""
        branch.add(
            f"  adapter {escape(each.id)} ({escape(each.path)}), rank {each.rank}: running {each.running}, "
            f"queued {each.waiting}, of {each.requests} requests{leaving}"
        )


def _held(dtype: str) -> str:
    return f" of {dtype}" if dtype else ""


def _place(device: str, gpu_uuid: str) -> str:
    return f"{device} ({gpu_uuid})" if gpu_uuid else device


def _line(name: str, address: str, status: str, process_id: int | None) -> str:
    colour = "green" if status in {"ok", "serving"} else "red" if status == "unreachable" else "yellow"
    process = f" pid {process_id}" if process_id else ""
    return f"[bold]{name}[/bold] {address}{process} [{colour}]{status}[/{colour}]"


def _ask_gateway(address: str, files: TlsFiles | None) -> GatewayFacts:
    """Without keys a gateway answers to the names it knows, and to addresses: so it is asked by those, too."""
    facts = _ask_health(address, files)
    scheme, slashes, place = address.rstrip("/").rpartition("://")
    if facts.status == "error 403" and not is_unix(address):
        host, port = split_address(place)
        known = (
            _ask_health(f"{scheme}{slashes}{join_address(str(each[4][0]), port)}", files)
            for each in socket.getaddrinfo(host, port)
        )
        facts = next((replace(each, address=address) for each in known if each.process_id), facts)
    return facts


def _ask_health(address: str, files: TlsFiles | None) -> GatewayFacts:
    try:
        body = read_health(address, files, TIMEOUT_SECONDS)
    except GatewayStatusError as error:
        return GatewayFacts(address, str(error))
    except (OSError, ValueError):
        return GatewayFacts(address, "unreachable")
    return GatewayFacts(address, str(body.get("status", "ok")), body.get("process_id"))


def _ask_verify(address: str, tls: Tls | None) -> VerifyFacts:
    with open_sync_channel(address, tls=tls) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        try:
            info = stub.GetInfo(verify_pb2.GetInfoRequest(), timeout=TIMEOUT_SECONDS)
            state = stub.GetState(verify_pb2.GetStateRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError:
            return VerifyFacts(address, "unreachable")
    return VerifyFacts(
        address=address,
        status="draining" if state.draining else "serving",
        process_id=info.process_id,
        model=info.model_name,
        model_path=info.model_path,
        fingerprint=info.model_fingerprint,
        mode=info.mode,
        device=info.device,
        gpu_uuid=info.gpu_uuid,
        max_context=info.max_context,
        max_nodes=info.max_nodes,
        page_size=info.page_size,
        kv_cache_dtype=info.kv_cache_dtype,
        proposers=tuple(_proposer(each, info.default_proposer) for each in info.proposers),
        state=_state(state),
        drafters=tuple(_fields(each) | {"sources": list(map(_fields, each.sources))} for each in state.drafters),
        refusals=tuple(RefusalFacts(**_fields(each)) for each in info.refusals),
        max_adapters=info.max_adapters,
        max_adapter_rank=info.max_adapter_rank,
        adapters=tuple(map(_adapter, state.adapters)),
    )


def _state(state: verify_pb2.GetStateResponse) -> dict[str, Any]:
    """All but drafters and adapters; `forecast` is {} where nothing drafts."""
    forecast = _fields(state.forecast) if state.HasField("forecast") else {}
    own = {name: value for name, value in _fields(state).items() if name not in ("drafters", "adapters", "forecast")}
    return own | {"forecast": forecast}


def _adapter(state: verify_pb2.AdapterState) -> AdapterFacts:
    counts = {name: value for name, value in _fields(state).items() if name != "adapter"}
    return AdapterFacts(**_fields(state.adapter), **counts)


def _fields(message: Any) -> dict[str, Any]:
    return {descriptor.name: getattr(message, descriptor.name) for descriptor in message.DESCRIPTOR.fields}


def _proposer(status: verify_pb2.ProposerStatus, default: str) -> ProposerFacts:
    return ProposerFacts(
        name=status.name,
        configured=status.configured,
        attached=status.attached,
        default=status.name == default,
        process_id=status.process_id or None,
        address=status.address,
        transport=status.transport,
        epoch=status.epoch or None,
        device=status.device,
        gpu_uuid=status.gpu_uuid,
        transport_reason=status.transport_reason,
        overlap=status.overlap,
    )


def _ask_draft(address: str, tls: Tls | None) -> DraftFacts:
    with open_sync_channel(address, tls=tls) as channel:
        stub = draft_pb2_grpc.DraftAdminServiceStub(channel)
        try:
            info = stub.GetInfo(draft_pb2.DraftAdminServiceGetInfoRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError:
            return DraftFacts(address, "unreachable")
    return DraftFacts(
        address=address,
        status="serving" if info.attached else "not attached",
        process_id=info.process_id,
        verify_address=info.verify_address,
        proposers=tuple(offer.name for offer in info.proposers),
        sessions=info.sessions,
        trees_sent=info.trees_sent,
        refusal=info.refusal,
    )
