"""For locust's own command and web page: `locust -f loadtest/locustfile.py --host http://127.0.0.1:8000`."""

from __future__ import annotations

from loadtest.users import Asking, GrpcStreamUser, HttpStreamUser, StreamUser

# isort: split
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from locust import events

from loadtest.prompts import forever, load_prompts
from loadtest.target import parse_target

__all__ = ["GrpcStreamUser", "HttpStreamUser"]


@events.init_command_line_parser.add_listener
def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--grpc", default="127.0.0.1:50051", help="gRPC address of the gateway")
    parser.add_argument("--prompts", default="", help="JSON-lines file of conversations")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer")


@events.test_start.add_listener
def _settle(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    target = parse_target(environment.host or "http://127.0.0.1:8000", options.grpc)
    conversations = load_prompts(Path(options.prompts) if options.prompts else None)
    StreamUser.asking = Asking(target, forever(conversations), options.max_tokens)
