"""Cuts the trees of a step to what their tenants may add to it, where requests of several tenants are in it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.device_tree import most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import truncated
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.scheduler.fair_share import split_whole
from verify_service.scheduler.pass_share import Load, PassShare

Drafts = Sequence[tuple[ScheduledRequest, TokenTree]]

LEAST_ASKED = 4
"""Rows of a tree that is asked for at least, once one of the request was cut."""


def several_tenants(items: Sequence[ScheduledRequest]) -> bool:
    """Whether rows of a step are of more than one."""
    return len({item.state.parameters.tenant for item in items}) > 1


def observe_wait(passes: PassShare, seconds: float, items: Sequence[ScheduledRequest], asking: set[str]) -> None:
    """A step of these items waited for trees that tenants `asking` want; it counts where others are in it."""
    if any(item.state.parameters.tenant not in asking for item in items):
        passes.observe_wait(seconds)


def cut_trees(passes: PassShare, drafts: Drafts, items: Sequence[ScheduledRequest], room: int) -> Drafts:
    """What of drafted trees their tenants may have, beside all that `items` have already; trees stay trees.

    room: nodes of the step that are left over all requests. A request whose tree is cut asks for smaller ones, as its
    drafter would work, and the step wait, for nothing.
    """
    if not drafts:
        return drafts
    if not several_tenants(items):
        for item, _ in drafts:
            item.state.draft.max_tree_rows = 0
        return drafts
    sizes = [most_rows(tree)[0] for _, tree in drafts]
    allowed = _allowed_nodes(passes, [item for item, _ in drafts], sizes, items, room) or sizes
    fitting: list[tuple[ScheduledRequest, TokenTree]] = []
    for (item, tree), nodes, most in zip(drafts, sizes, allowed, strict=True):
        item.state.draft.max_tree_rows = max(LEAST_ASKED, 1 + 2 * most) if most < nodes else 0
        passes.cut_nodes += max(0, nodes - most)
        part = tree if most >= nodes else truncated(tree, max_nodes=1 + most, max_depth=most)
        if part is not None:
            fitting.append((item, part))
    return fitting


def _allowed_nodes(
    passes: PassShare,
    drafting: Sequence[ScheduledRequest],
    sizes: Sequence[int],
    items: Sequence[ScheduledRequest],
    room: int,
) -> list[int] | None:
    """Nodes that each of the items `drafting` may have of trees of these sizes, beside what all `items` have already.

    That is its tenant's share, split among the tenant's requests; None where all may have what they want.
    """
    present: dict[str, Load] = {}
    for item in items:
        load = present.get(item.state.parameters.tenant) or Load(item.state.request.weight, 0, 0)
        rows = item.count - 1 + item.num_rows - 1
        present[item.state.parameters.tenant] = Load(load.weight, load.requests + 1, load.rows + rows)
    wanted = dict.fromkeys(present, 0)
    for item, size in zip(drafting, sizes, strict=True):
        wanted[item.state.parameters.tenant] += size
    shares = passes.nodes(list(present.values()), list(wanted.values()), room)
    if shares is None:
        return None
    allowed = [0] * len(drafting)
    for tenant, share in zip(present, shares, strict=True):
        own = [index for index, item in enumerate(drafting) if item.state.parameters.tenant == tenant]
        for index, part in zip(own, split_whole(share, [sizes[i] for i in own], [1.0] * len(own)), strict=True):
            allowed[index] = part
    return allowed
