"""A verify service and draft services as processes on a device, spoken to without a gateway."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from slipstream.rpc.channel import open_sync_channel
from slipstream.v1 import sampling_pb2, verify_pb2, verify_pb2_grpc

TESTS = Path(__file__).parents[1]
START_SECONDS = 150.0


class DevicePair:
    """Use as a context. `device` is that of both services."""

    def __init__(self, model: Path, logs: Path, device: str, *flags: str) -> None:
        self._logs = logs
        self._device = device
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._flags = ("--model", str(model), "--port", str(self._port), "--device", device, *flags)
        self._stack = ExitStack()
        self.verify: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.verify = self._start("verify_service", *self._flags)
        channel = self._stack.enter_context(closing(open_sync_channel(f"127.0.0.1:{self._port}")))
        self._stub: Any = verify_pb2_grpc.VerifyServiceStub(channel)
        self.wait(lambda: self._info() is not None, START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def draft(self, proposer: str, *flags: str) -> subprocess.Popen[bytes]:
        """Start a draft service; it attaches by itself."""
        verify = ("--verify", f"127.0.0.1:{self._port}", "--port", "0", "--device", self._device)
        return self._start("draft_service", *verify, "--proposer", proposer, *flags)

    def attached(self) -> dict[int, tuple[str, str]]:
        """Process ids of attached draft services, with transport and reason."""
        info, state = self._info(), self._stub.GetState(verify_pb2.GetStateRequest(), timeout=20)
        reasons = {each.process_id: each.transport_reason for each in info.proposers} if info else {}
        return {each.process_id: (each.transport, reasons.get(each.process_id, "")) for each in state.drafters}

    def state(self) -> Any:
        """Counters of verify."""
        return self._stub.GetState(verify_pb2.GetStateRequest(), timeout=20)

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Until the condition holds. Fails if that takes too long, or verify has ended."""
        until = time.monotonic() + seconds
        while not condition():
            assert self.verify is not None and self.verify.poll() is None, self.tail()
            assert time.monotonic() < until, self.tail()
            time.sleep(0.05)

    def stream(self, prompts: Sequence[Sequence[int]], tokens: int, proposer: str, **sampling: Any) -> Stream:
        """Ask for answers of so many tokens; without speculation for an empty proposer."""
        return Stream(self._stub, prompts, tokens, proposer, sampling)

    def tail(self) -> str:
        """The end of every log."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in sorted(self._logs.glob("*.log"))
        )

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        number = len(list(self._logs.glob("*.log")))
        log = self._stack.enter_context((self._logs / f"{number:02d}-{module}.log").open("wb"))
        path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=log,
            stderr=log,
            cwd=TESTS.parent,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._stack.callback(_end, process)
        return process

    def _info(self) -> Any:
        try:
            return self._stub.GetInfo(verify_pb2.GetInfoRequest(), timeout=20)
        except Exception:  # noqa: BLE001 - not up yet, whatever that looks like
            return None


class Stream:
    """Requests under way."""

    def __init__(
        self, stub: Any, prompts: Sequence[Sequence[int]], tokens: int, proposer: str, sampling: dict[str, Any]
    ) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        params = sampling_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
        speculation = sampling_pb2.Speculation(enabled=bool(proposer), proposer=proposer)
        if proposer:
            speculation.max_nodes, speculation.max_depth = 12, 6
        for number, prompt in enumerate(prompts):
            submit = verify_pb2.Submit(
                request_id=number, prompt_token_ids=prompt, sampling=params, speculation=speculation
            )
            self._queue.put(verify_pb2.SessionRequest(submit=submit))
        self._call = stub.Session(self._requests())
        self._left = len(prompts)
        self.tokens: dict[int, list[int]] = defaultdict(list)

    def __iter__(self) -> Iterator[int]:
        """The number of tokens of all requests, after each message; ends with the requests."""
        for message in self._call:
            for output in message.outputs:
                assert not output.error.message, output.error.message
                self.tokens[output.request_id] += output.token_ids
                self._left -= output.finish_reason != sampling_pb2.FINISH_REASON_UNSPECIFIED
            yield sum(map(len, self.tokens.values()))
            if not self._left:
                break
        self._queue.put(None)

    def answers(self) -> list[list[int]]:
        """Of all requests, once they are over."""
        for _ in self:
            pass
        return [self.tokens[number] for number in sorted(self.tokens)]

    def _requests(self) -> Iterator[Any]:
        yield from iter(self._queue.get, None)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes without a chance to say so, and wait for that."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
