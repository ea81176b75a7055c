"""Which part of the requests a draft service takes, set by an operator in the page or by a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import grpc
from pydantic import Field

from gateway.openai.fields import Body
from gateway.replicas.replica import Replica
from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import NotFoundError
from slipstream.rpc.tls import Tls
from slipstream.v1 import draft_pb2, draft_pb2_grpc

MOST_BYTES: Final = 4096
"""Of a request's body."""

Part = Annotated[float, Field(ge=0, le=1)]


class ShareRequest(Body):
    """Body of POST /services/share."""

    verify_service: str = Field(description="Address of the verify service, as GET /services has it.")
    epoch: Annotated[int, Field(ge=1, le=2**64 - 1)] = Field(description="Of the draft service's attachment to it.")
    share: Part = Field(description="0: it leaves them to the others; 1: it takes all from older ones; else that part.")


async def set_share(replicas: Iterable[Replica], wish: ShareRequest, tls: Tls | None, seconds: float) -> None:
    """Have a draft service set its share; returns before any request has moved.

    NotFoundError for a service or an attachment that is not there, UnavailableError and others of the table where one
    of them does not answer within `seconds`.
    """
    replica = next((each for each in replicas if each.address == wish.verify_service), None)
    if replica is None:
        raise NotFoundError(f"no verify service has the address {wish.verify_service[:80]!r}", field="verify_service")
    state = await replica.fetch_state()
    address = next((each.address for each in state.drafters if each.epoch == wish.epoch), None)
    if not address:
        raise NotFoundError(f"no draft service is attached with epoch {wish.epoch}", field="epoch")
    async with open_channel(address, tls=tls) as channel:
        admin = draft_pb2_grpc.DraftAdminServiceStub(channel)
        try:
            await admin.SetShare(draft_pb2.SetShareRequest(share=wish.share), timeout=seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
