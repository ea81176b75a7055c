"""The command's options."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.repository import DEMO_HEAD, DEMO_MODEL
from benchmarks.serving.client import ServerAddress
from benchmarks.serving.forms import FORMS, ON_CPU, ON_GPU, Form, form
from benchmarks.serving.load import Ramp
from benchmarks.serving.prompt_sets import AS_THEY_ARE
from benchmarks.serving.session import SAME, TOKEN_IDS, UNTIMED, WARM, Budget

CONCURRENCY = (1, 4, 16, 64)
"""Where no load is named."""


def parse(description: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, their lists and durations read; with `forms`, the forms of our server that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_server(parser)
    _add_prompts(parser)
    _add_load(parser)
    _add_results(parser)
    options = parser.parse_args(arguments)
    if not (options.concurrency or options.rates or options.ramp):
        options.concurrency = CONCURRENCY
    try:
        _complete(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    group.add_argument("--server", metavar="URL", help="one that runs, of any make, such as http://127.0.0.1:8000")
    group.add_argument("--label", metavar="NAME", default="server", help="what results call it (%(default)s)")
    group.add_argument("--api-key", metavar="KEY", default="", help="that it wants")
    group.add_argument("--model", help="folder that ours serves (the demo model); with --server: the name to ask for")
    group.add_argument(
        "--draft", metavar="PROPOSER[:DIR]", help="that drafts, as of serve (the demo model's EAGLE-3 head)"
    )
    group.add_argument(
        "--forms", metavar="NAME,...", help=f"of {', '.join(FORMS)} ({','.join(ON_GPU)}; on a CPU {','.join(ON_CPU)})"
    )
    group.add_argument(
        "--budgets",
        metavar="BUDGET,...",
        default="default",
        help="default, off, or ROWS/DEPTH, such as default,16/5 (%(default)s)",
    )
    group.add_argument("--device", metavar="DEVICE", help="cuda, cuda:N or cpu (a GPU if there is one)")
    group.add_argument(
        "--serve-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="to slipstream serve, --serve-arg=--max-running=256",
    )
    group.add_argument(
        "--attach-seconds", metavar="S", type=float, default=180.0, help="that a drafter may take (%(default)g)"
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the prompts")
    group.add_argument(
        "--prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines: Spec-Bench, messages, prompt, or token_ids",
    )
    group.add_argument(
        "--count", metavar="N", type=int, default=128, help="how many, spread over their categories (%(default)s)"
    )
    group.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="folder of tokenizer and chat template (that of --model)"
    )
    group.add_argument("--send", choices=("ids", "text"), default="ids", help="as token ids or text (%(default)s)")
    group.add_argument(
        "--contexts",
        metavar="N,...",
        default="",
        help="tokens to stretch prompts to, such as 1k,8k,32k; 0: as they are (0)",
    )
    group.add_argument("--new-tokens", metavar="N", type=int, default=256, help="of each answer (%(default)s)")
    group.add_argument("--body", default="{}", metavar="JSON", help="more fields of each request")
    group.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of order, stretching and arrivals (%(default)s)"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the load")
    group.add_argument(
        "--concurrency",
        metavar="N,...",
        type=_integers,
        default=(),
        help="closed loops, such as 1,4,16,64 (these, if no load is named)",
    )
    group.add_argument(
        "--per-client",
        type=int,
        default=0,
        metavar="N",
        help="a closed loop asks the first N x concurrency prompts (all)",
    )
    group.add_argument(
        "--rates",
        metavar="R,...",
        type=_floats,
        default=(),
        help="open loops: requests a second in the mean, Poisson, such as 2,8,32",
    )
    group.add_argument(
        "--open-seconds", metavar="S", type=float, default=math.inf, help="of an open loop at most (all prompts)"
    )
    group.add_argument(
        "--ramp", type=_ramp, metavar="PEAK/SECONDS", help="1 to PEAK clients to 1 again, such as 128/30"
    )
    group.add_argument("--warm", choices=WARM, default=SAME, help="sent before, untimed (%(default)s)")
    group.add_argument("--token-ids", choices=TOKEN_IDS, default=UNTIMED, help="which answers carry ids (%(default)s)")
    group.add_argument("--processes", metavar="N", type=int, default=4, help="that play the clients (%(default)s)")
    group.add_argument(
        "--patience", metavar="S", type=float, default=600.0, help="seconds that a request may take (%(default)g)"
    )


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the results")
    group.add_argument("--ttft-bound-ms", metavar="MS", type=float, help="for goodput: the first token within so long")
    group.add_argument(
        "--tpot-bound-ms", metavar="MS", type=float, help="for goodput: each later token within so long in the mean"
    )
    group.add_argument("--output", metavar="FILE", type=Path, help="JSON, written anew after each load")
    group.add_argument(
        "--plot", metavar="FILE", type=Path, help="PNG or SVG: throughput against interactivity, and the ramp"
    )
    group.add_argument("--logs", type=Path, metavar="DIR", help="where logs of our servers go (a temporary folder)")


def _complete(options: argparse.Namespace) -> None:
    options.contexts = tuple(map(_context, options.contexts.split(","))) if options.contexts else (AS_THEY_ARE,)
    options.budgets = tuple(map(Budget.of, options.budgets.split(",")))
    options.body = json.loads(options.body)
    if not isinstance(options.body, dict):
        raise ValueError("--body: must be a JSON object")
    if (
        min(options.count, options.new_tokens, options.processes, *options.concurrency) < 1
        or min(options.rates, default=1) <= 0
    ):
        raise ValueError("--count, --new-tokens, --processes, --concurrency and --rates must be positive")
    options.device = options.device or _device()
    options.forms = _forms(options)
    if options.tokenizer is None and not options.server:
        options.tokenizer = options.forms[0].model


def _forms(options: argparse.Namespace) -> list[Form]:
    if options.server:
        ServerAddress.of(options.server)
        if options.forms or options.draft:
            raise ValueError("--forms and --draft are of servers that are started here, and --server runs already")
        return []
    device = options.device
    model = Path(options.model or DEMO_MODEL).resolve()
    if options.draft is None and options.model is not None and options.forms != "plain":
        raise ValueError("--draft: name what drafts for this --model, such as eagle3:DIR, or --forms plain")
    names = (options.forms or ",".join(ON_GPU if device.startswith("cuda") else ON_CPU)).split(",")
    return [form(name, model, options.draft or f"eagle3:{DEMO_HEAD}", device, options.serve_arg) for name in names]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _context(text: str) -> int:
    return 1024 * int(text[:-1]) if text.endswith("k") else int(text)


def _ramp(text: str) -> Ramp:
    peak, _, seconds = text.partition("/")
    ramp = Ramp(int(peak), float(seconds))
    if ramp.peak < 1 or ramp.length <= 0:
        raise ValueError(text)
    return ramp
