"""What the gateway costs: CPU time a streamed token, and time added to the first one.

Three processes: a verify service without a model, which answers with one token a message; the gateway under
measurement; and this one, which plays the clients. Run it as

    python -m benchmarks.gateway_cost --model demo_models/slipstream-demo --output gateway_cost.json

Each line of the table is one API under one way of sending. *paced*: every stream gets `--rate` tokens a second and
each token crosses the session to verify as a message of its own. *gathered*: the tokens that all streams get at
one time cross in one message, as a verify step sends them. *flood*: one message a token, as fast as they are taken.
CPU is user and system time of the gateway and its text workers over the tokens streamed, requests' own cost included.
The first token's time is compared with that of the same requests made of the verify service directly; paced and
gathered streams start one after the other over the length of a request, so that each starts among 63 running ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import uvloop

from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import GrpcServer
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2, verify_pb2, verify_pb2_grpc

PROMPT: Final = "Which rivers flow through Vienna?"
MODES: Final = ("paced", "gathered", "flood")
_READY: Final = re.compile(r"ready http=(\d+) grpc=(\d+)")


class InstantVerify(verify_pb2_grpc.VerifyServiceServicer):
    """Says each prompt again and again. The first token goes out at once, the others as the mode of the tenant says."""

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate

    async def GetInfo(self, request: Any, context: Any) -> verify_pb2.GetInfoResponse:  # noqa: N802  # of gRPC
        """See the proto."""
        return verify_pb2.GetInfoResponse(
            model_name="instant", model_fingerprint="instant", vocab_size=2**31, max_context=4096, max_nodes=64
        )

    async def Session(self, requests: Any, context: Any) -> None:  # noqa: N802  # of gRPC
        """See the proto."""
        outbox: asyncio.Queue[list[verify_pb2.RequestOutput]] = asyncio.Queue(maxsize=64)
        gathered: dict[int, AsyncIterator[verify_pb2.RequestOutput]] = {}
        await context.send_initial_metadata(())
        tasks = [asyncio.create_task(self._send(outbox, context)), asyncio.create_task(self._tick(gathered, outbox))]
        try:
            async for message in requests:
                if not message.HasField("submit"):
                    continue
                submit = message.submit
                outputs = _outputs(submit)
                await outbox.put([await anext(outputs)])
                if submit.tenant == "gathered":
                    gathered[submit.request_id] = outputs
                else:
                    interval = 0.0 if submit.tenant == "flood" else self._interval
                    tasks.append(asyncio.create_task(_emit(outputs, outbox, interval)))
        finally:
            for task in tasks:
                task.cancel()

    async def _send(self, outbox: asyncio.Queue[list[verify_pb2.RequestOutput]], context: Any) -> None:
        while True:
            await context.write(verify_pb2.SessionResponse(outputs=await outbox.get()))

    async def _tick(
        self,
        gathered: dict[int, AsyncIterator[verify_pb2.RequestOutput]],
        outbox: asyncio.Queue[list[verify_pb2.RequestOutput]],
    ) -> None:
        while True:
            await asyncio.sleep(self._interval)
            step = []
            for request_id, outputs in list(gathered.items()):
                step.append(await anext(outputs))
                if step[-1].finish_reason:
                    del gathered[request_id]
            if step:
                await outbox.put(step)


async def _outputs(submit: verify_pb2.Submit) -> AsyncIterator[verify_pb2.RequestOutput]:
    prompt, count = list(submit.prompt_token_ids), submit.sampling.max_tokens
    for index in range(count):
        output = verify_pb2.RequestOutput(request_id=submit.request_id, token_ids=[prompt[index % len(prompt)]])
        output.step.drafted = 0
        output.step.SetInParent()
        if index == count - 1:
            output.finish_reason = sampling_pb2.FINISH_REASON_LENGTH
            output.usage.completion_tokens = count
        yield output


async def _emit(
    outputs: AsyncIterator[verify_pb2.RequestOutput],
    outbox: asyncio.Queue[list[verify_pb2.RequestOutput]],
    interval: float,
) -> None:
    due = time.monotonic()
    async for output in outputs:
        due += interval
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await outbox.put([output])


def serve_verify(rate: float, pipe: Connection) -> None:
    """Serve InstantVerify on a free port, which goes into `pipe`."""

    async def serve() -> None:
        server = GrpcServer(
            host="127.0.0.1",
            port=0,
            services=["slipstream.v1.VerifyService"],
            register=lambda grpc_server: verify_pb2_grpc.add_VerifyServiceServicer_to_server(
                InstantVerify(rate), grpc_server
            ),
        )
        pipe.send(await server.start())
        await server.wait()

    uvloop.run(serve())


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` clients at once, each with `requests` requests of `tokens` tokens after one another."""

    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times: microseconds of CPU a token, milliseconds to the first token."""

    api: str
    mode: str
    tokens: int
    tokens_per_second: float
    cpu_us_per_token: float
    first_token_ms_median: float
    first_token_ms_p95: float
    direct_ms_median: float
    added_ms_median: float


Client = Callable[[str, int], Awaitable[float]]
"""Runs one request under (mode, tokens); returns seconds to the first token."""


def sse_client(port: int) -> Client:
    """Speaks HTTP over a plain socket, so that the client's own cost does not slow the gateway."""

    async def run(mode: str, tokens: int) -> float:
        body = json.dumps(
            {"model": "instant", "messages": [{"role": "user", "content": PROMPT}], "stream": True, "user": mode,
             "max_tokens": tokens, "ignore_eos": True}
        ).encode()  # fmt: skip
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        start, first, received = time.perf_counter(), 0.0, b""
        writer.write(head.encode() + body)
        while part := await reader.read(65536):
            if not first and b"data: " in part:
                first = time.perf_counter() - start
            received += part
        writer.close()
        if b"data: [DONE]" not in received:
            raise RuntimeError(received[:500].decode())
        return first

    return run


def grpc_client(address: str) -> Client:
    """Opens one channel for all its calls."""
    stub: Any = None

    async def run(mode: str, tokens: int) -> float:
        nonlocal stub
        if stub is None:
            stub = gateway_pb2_grpc.GatewayServiceStub(open_channel(address))
        request = gateway_pb2.GenerateRequest(
            chat={"messages": [{"role": "user", "content": PROMPT}]},
            tenant=mode,
            sampling={"max_tokens": tokens, "ignore_eos": True},
        )
        start, first, count = time.perf_counter(), 0.0, 0
        call = stub.Generate(request)
        while (message := await call.read()) is not grpc.aio.EOF:
            first = first or time.perf_counter() - start
            count += len(message.token_ids)
        if count != tokens:
            raise RuntimeError(f"{count} tokens of {tokens}")
        return first

    return run


def direct_client(address: str) -> Client:
    """A session to the verify service for each request: what the first token takes without a gateway."""
    stub: Any = None

    async def run(mode: str, tokens: int) -> float:
        nonlocal stub
        if stub is None:
            stub = verify_pb2_grpc.VerifyServiceStub(open_channel(address))
        submit = verify_pb2.Submit(
            request_id=1, prompt_token_ids=range(20), tenant=mode, sampling={"max_tokens": tokens}
        )
        start, first = time.perf_counter(), 0.0
        call = stub.Session()
        await call.write(verify_pb2.SessionRequest(submit=submit))
        while (message := await call.read()) is not grpc.aio.EOF:
            first = first or time.perf_counter() - start
            if message.outputs[0].finish_reason:
                break
        call.cancel()
        return first

    return run


async def drive(client: Client, mode: str, load: Load, spread: float = 0.0) -> list[float]:
    """Run the load, the streams starting over `spread` seconds; returns seconds to the first token of each request."""

    async def one(index: int) -> list[float]:
        await asyncio.sleep(index / load.streams * spread)
        return [await client(mode, load.tokens) for _ in range(load.requests)]

    return [first for firsts in await asyncio.gather(*map(one, range(load.streams))) for first in firsts]


async def measure(
    api: str, client: Client, direct: Client, mode: str, load: Load, gateway: psutil.Process, *, spread: float
) -> Row:
    """One line of the table."""
    if mode == "flood":
        spread = 0.0
    await drive(client, mode, Load(4, 1, 8))
    before, start = _processor_seconds(gateway), time.perf_counter()
    firsts = await drive(client, mode, load, spread)
    elapsed, after = time.perf_counter() - start, _processor_seconds(gateway)
    directs = await drive(direct, mode, load, spread)
    tokens = load.streams * load.requests * load.tokens
    median, direct_median = statistics.median(firsts) * 1e3, statistics.median(directs) * 1e3
    return Row(
        api=api,
        mode=mode,
        tokens=tokens,
        tokens_per_second=tokens / elapsed,
        cpu_us_per_token=(after - before) / tokens * 1e6,
        first_token_ms_median=median,
        first_token_ms_p95=statistics.quantiles(firsts, n=20)[-1] * 1e3,
        direct_ms_median=direct_median,
        added_ms_median=median - direct_median,
    )


def _processor_seconds(gateway: psutil.Process) -> float:
    """User and system time of the gateway and its text workers so far."""
    times = [process.cpu_times() for process in (gateway, *gateway.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def start_gateway(
    model: Path,
    verify: str,
    more: Sequence[str],
    *,
    python: Path | str = sys.executable,
    folder: Path | None = None,
) -> tuple[subprocess.Popen[str], int, str]:
    """The gateway under measurement, started with `more` arguments, with its HTTP port and gRPC address.

    Another source tree's is started in its `folder` by the `python` of its environment.
    """
    command = [str(python), "-m", "gateway", "--model", str(model), "--verify", verify]
    command += ["--http-port", "0", "--grpc-port", "0", *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    log = []
    while line := process.stderr.readline():
        log.append(line)
        if ready := _READY.search(line):
            # A line a request follows, and a pipe that nobody reads holds its writer up.
            threading.Thread(target=deque, args=(process.stderr, 0), daemon=True).start()
            return process, int(ready[1]), f"127.0.0.1:{ready[2]}"
    raise RuntimeError("".join(log))


async def run(arguments: argparse.Namespace, verify: str, http_port: int, grpc_address: str, pid: int) -> list[Row]:
    """All lines of the table."""
    gateway, direct = psutil.Process(pid), direct_client(verify)
    clients = {"sse": sse_client(http_port), "grpc": grpc_client(grpc_address)}
    load = Load(arguments.streams, arguments.requests, arguments.tokens)
    await wait_ready(clients["grpc"])
    rows = []
    for mode in arguments.modes:
        for api, client in clients.items():
            row = await measure(api, client, direct, mode, load, gateway, spread=load.tokens / arguments.rate)
            rows.append(row)
            print(_line(row), flush=True)
    return rows


async def wait_ready(client: Client) -> None:
    """Return once a request is answered."""
    for attempt in range(100):
        try:
            await client("paced", 1)
        except (grpc.RpcError, RuntimeError):
            if attempt == 99:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def _line(row: Row) -> str:
    return (
        f"{row.api:4}  {row.mode:8}  {row.tokens_per_second:8.0f}  {row.cpu_us_per_token:12.1f}  "
        f"{row.first_token_ms_median:8.2f}  {row.first_token_ms_p95:8.2f}  {row.added_ms_median:8.2f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway_cost",
        description="CPU time a streamed token and time added to the first, by API.",
    )
    parser.add_argument("--model", type=Path, required=True, help="folder whose tokenizer and chat template are used")
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--requests", type=int, default=3, help="requests of each stream, one after the other")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a request")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of a paced stream")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="ways of sending")
    parser.add_argument("--gateway-arg", action="append", default=[], help="one more argument of the gateway")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    arguments = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    verify = context.Process(target=serve_verify, args=(arguments.rate, theirs), daemon=True)
    verify.start()
    address = f"127.0.0.1:{ours.recv()}"
    gateway, http_port, grpc_address = start_gateway(arguments.model, address, arguments.gateway_arg)
    print("api   mode      tokens/s  CPU us/token  first ms   p95 ms  added ms")
    try:
        rows = uvloop.run(run(arguments, address, http_port, grpc_address, gateway.pid))
    finally:
        gateway.terminate()
        gateway.wait()
        verify.kill()
        verify.join()
    if arguments.output:
        report = {"host": platform.processor() or platform.machine(), "python": platform.python_version(),
                  "streams": arguments.streams, "rows": [asdict(row) for row in rows]}  # fmt: skip
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
