"""Decisions that end at logits which decide nothing: they hold a NaN or infinity, or minus infinity alone.

Such a request fails by name at the position where that happens, after the tokens that were decided before it: with a
tree, those of the accepted path. No other request is touched, and its pages do not enter the prefix cache as it ends.
"""

from __future__ import annotations

from slipstream.rpc.errors import InternalError
from verify_service.core.acceptance import NO_TOKEN, AcceptedPath
from verify_service.core.step_result import VerifyResult
from verify_service.engine.request_output import cut_output


def decided_part(decision: VerifyResult) -> VerifyResult | None:
    """The decision up to its last token, without it where it is NO_TOKEN; None where nothing is left.

    A decision whose output ends before that token is returned as it is.
    """
    nodes, tokens = decision.path
    if tokens[-1] != NO_TOKEN or cut_output(decision.item.state, tokens)[0] < len(tokens):
        return decision
    return decision._replace(path=AcceptedPath(nodes[:-1], tokens[:-1])) if nodes else None


def undecided_error(position: int) -> InternalError:
    """Of a request whose next token, at that position of its text, cannot be decided."""
    return InternalError(
        f"the target's logits at position {position} are not finite numbers (NaN or infinite): no token can be chosen"
    )
