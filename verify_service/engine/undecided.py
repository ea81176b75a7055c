"""Decisions that end without a token: the logits hold a NaN or infinity, or minus infinity alone, or a grammar fails.

Such a request fails by name at the position where that happens, after the tokens that were decided before it: with a
tree, those of the accepted path. No other request is touched, and its pages do not enter the prefix cache as it ends.
"""

from __future__ import annotations

import logging

from slipstream.rpc.errors import InternalError, InvalidArgumentError, SlipstreamError
from slipstream.rpc.logs import with_fields
from verify_service.core.acceptance import NO_TOKEN, AcceptedPath
from verify_service.core.step_result import VerifyResult
from verify_service.engine.request_output import cut_output

_log = logging.getLogger(__name__)


def decided_part(decision: VerifyResult) -> VerifyResult | None:
    """The decision up to its last token, without it where it is NO_TOKEN; None where nothing is left.

    A decision whose output ends before that token is returned as it is.
    """
    nodes, tokens = decision.path
    if tokens[-1] != NO_TOKEN:
        return decision
    if cut_output(decision.item.state, tokens)[0] < len(tokens):
        return decision
    return decision._replace(path=AcceptedPath(nodes[:-1], tokens[:-1])) if nodes else None


def reported_error(decision: VerifyResult) -> SlipstreamError:
    """Return, and log, what a request is told whose next token cannot be decided; those before it are committed."""
    state = decision.item.state
    error = undecided_error(len(state.tokens), decision.failure)
    named = with_fields(request_id=state.request.context.request_id or None)
    _log.error("request %d of session %d: %s", state.key.request_id, state.key.session_id, error, extra=named)
    return error


def undecided_error(position: int, failure: str = "") -> SlipstreamError:
    """Return the error of a text whose next token, at that position, cannot be decided; `failure` is its grammar's."""
    if failure:
        return InvalidArgumentError(
            f"the grammar of this request cannot be followed at position {position}: {failure}", field="grammar"
        )
    return InternalError(
        f"the target's logits at position {position} are not finite numbers (NaN or infinite): no token can be chosen"
    )
