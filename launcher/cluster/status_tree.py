"""`slipstream cluster status` for people: nodes, their replicas, drafters, load and cache hits."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from launcher.cluster.status import ClusterStatus, LoadStatus, NodeStatus, ReplicaStatus

LINE_WIDTH = 160
"""Lines are not broken before this column, so that they can be searched."""
_COLOURS = {"standby": "blue", "ready": "green", "starting": "yellow", "draining": "yellow", "stopping": "yellow"}
NOTES_SHOWN = 5


def render(found: ClusterStatus) -> None:
    """Print it."""
    bounds = f"{found.least}" if found.least == found.most else f"{found.least} to {found.most}"
    state = "closing" if found.closing else "settled" if found.settled else "changing"
    head = f"[bold]cluster[/bold] {escape(found.name)}: {found.ready} of {found.wanted} replicas serve"
    root = Tree(f"{head} ({bounds} wanted), generation {found.generation}, {state}")
    root.add(
        f"directory {found.directory}{f' [red]{escape(found.directory_error)}[/red]' if found.directory_error else ''}"
    )
    for node in found.nodes:
        _add_node(root, node, found)
    lost = [each for each in found.replicas if each.node not in {node.node for node in found.nodes}]
    if lost:
        branch = root.add("without a node")
        for replica in lost:
            _add_replica(branch, replica)
    if found.failures:
        root.add(f"[red]{found.failures} starts in a row have failed[/red]: {escape(found.reason)}")
    for note in found.notes[-NOTES_SHOWN:]:
        root.add(escape(note))
    Console(highlight=False, width=max(Console().width, LINE_WIDTH)).print(root)


def _add_node(root: Tree, node: NodeStatus, found: ClusterStatus) -> None:
    off = " [yellow]gets no replicas[/yellow]" if node.off else ""
    branch = root.add(f"[bold]node[/bold] {node.node[:8]} {node.host}, {node.cpus:g} CPUs, {node.gpus:g} GPUs{off}")
    for replica in found.replicas:
        if replica.node == node.node:
            _add_replica(branch, replica)


def _add_replica(branch: Tree, replica: ReplicaStatus) -> None:
    colour = _COLOURS[replica.state]
    place = f"{replica.address} " if replica.address else ""
    gpus = f" GPU {','.join(replica.gpus)}" if replica.gpus else ""
    process = f"pid {replica.process_id}" if replica.process_id else "waits for a place"
    leaves = ", is exchanged" if replica.leaving else ""
    leaf = branch.add(
        f"[bold]replica {replica.number}[/bold] {place}[{colour}]{replica.state}[/{colour}] for {replica.seconds:.0f} "
        f"s, {process}{gpus}, generation {replica.generation}{leaves}"
    )
    if replica.progress:
        leaf.add(escape(replica.progress))
    if replica.model:
        metrics = f", metrics http://{replica.metrics}/metrics" if replica.metrics else ""
        leaf.add(f"model {escape(replica.model)}, {replica.build}{metrics}")
    if replica.load is not None:
        _add_load(leaf, replica.load)


def _add_load(leaf: Tree, load: LoadStatus) -> None:
    hits = "none yet" if load.hit_rate is None else f"{load.hit_rate:.0%} of prompt tokens"
    oldest = f" for {load.oldest_wait_seconds:.1f} s" if load.queued else ""
    leaf.add(
        f"running {load.running}, queued {load.queued}{oldest}, KV pages {load.pages_idle} of {load.pages_total} free "
        f"or evictable, cache hits {hits}, tokens {load.tokens}"
    )
    for drafter in load.drafters:
        share = f" ({drafter.accepted_tokens / drafter.drafted_tokens:.0%})" if drafter.drafted_tokens else ""
        leaf.add(
            f"drafter {escape(drafter.proposer)} pid {drafter.process_id} over {drafter.transport} for "
            f"{drafter.requests} requests: drafted {drafter.drafted_tokens}, accepted {drafter.accepted_tokens}{share}"
        )
