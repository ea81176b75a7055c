"""The draft service's own gRPC API: health, reflection and administration."""

from __future__ import annotations

from typing import Any

import grpc

from draft_service.config import DraftSettings
from draft_service.protocol.codec import Identity
from draft_service.server import admin_codec
from draft_service.server.admin_codec import AdminState
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.server import GrpcServer, abort
from slipstream.v1 import draft_pb2_grpc

ADMIN_SERVICE = "slipstream.v1.DraftAdminService"


class DraftAdmin(draft_pb2_grpc.DraftAdminServiceServicer):
    """Serves DraftAdminService."""

    def __init__(self, worker: Worker, link: VerifyLink, identity: Identity) -> None:
        self._worker = worker
        self._link = link
        self._identity = identity

    async def GetInfo(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802 (fixed by gRPC)
        epoch = self._link.epoch
        state = AdminState(
            proposers=self._worker.proposers,
            verify_address=self._link.address,
            attached=epoch is not None,
            epoch=epoch or 0,
            sessions=self._worker.stats.sessions,
            trees_sent=self._worker.stats.trees_sent,
            transport=self._link.transport,
            transport_reason=self._link.transport_reason,
            refusal=self._link.refusal,
        )
        return admin_codec.encode_admin(state, self._identity)

    async def SetShare(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802 (fixed by gRPC)
        try:
            self._link.set_share(admin_codec.decode_share(request))
        except SlipstreamError as error:
            await abort(context, error)
        return admin_codec.encode_share_set()


def make_server(settings: DraftSettings, admin: DraftAdmin) -> GrpcServer:
    def register(server: grpc.aio.Server) -> None:
        draft_pb2_grpc.add_DraftAdminServiceServicer_to_server(admin, server)

    return GrpcServer(
        host=settings.host,
        port=settings.port,
        services=[ADMIN_SERVICE],
        register=register,
        credentials=settings.tls.server_credentials() if settings.tls else None,
        unix_socket=settings.unix_socket,
    )
