"""What it costs that the drafter is another process: rounds in process, across processes, across GPUs.

    python -m benchmarks.boundary [--places slicing,mps,second] [--transports ...] [--modes ...] [--output FILE]
    python -m benchmarks.boundary --device cpu --weights folder    # no GPU: inproc, shm and grpc
    python -m benchmarks.boundary --modes lockstep,behind --head DIR    # an EAGLE-3 head that drafts behind the pass
    python -m benchmarks.boundary --merge FILE ... --output FILE [--plot FILE]

The target has the shapes of Llama-3.1-8B and the demo model's text (benchmarks.inflate), made on its device. The
proposer reads `--draft-mb` of its device's memory for every tree, in as many passes as the tree is deep, and then
answers with the target's own continuation, so that trees are accepted to a level that is printed beside every figure. A
round is timed from one delivery of outputs to the next. The verify loop runs in a process of its own for each place
of the drafter; the drafter runs beside it there, or as `python -m draft_service`. Places:

    slicing   the same GPU, whose time the two processes share in slices
    mps       the same GPU under NVIDIA MPS, which is started for it, and ended afterwards
    second    another GPU
    cpu       the one CPU, for trials
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.boundary.plot import plot_boundary
from benchmarks.boundary.settings import BEHIND, CUDA_IPC, MODES, PLACES, TRANSPORTS, Measured, settings_of
from benchmarks.boundary.tables import rows_of, text_of
from benchmarks.inflate.shape_arguments import add_shape_arguments, shape_of
from benchmarks.lib.mps import mps_server
from benchmarks.lib.report import plain_options, write_json
from benchmarks.lib.repository import DEMO_MODEL, ROOT
from slipstream_kernels.ipc.cuda_driver import gpu_uuids

Content = dict[str, Any]


def run(options: argparse.Namespace) -> Content:
    """Measure every place, one after the other; what has been measured is kept in the file from then on."""
    content: Content = {"places": {}, "options": plain_options(options)}
    with tempfile.TemporaryDirectory(prefix="boundary-") as folder:
        for place in options.places:
            content["places"][place] = _place(options, place, Path(folder))
            _keep(options, content)
    return content


def merged(paths: Sequence[Path]) -> Content:
    """The places of several files; the last that has one counts."""
    content: Content = {"places": {}, "options": {}}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        content["places"] |= found["places"]
        content["options"] = found["options"]
    return content


def _place(options: argparse.Namespace, place: str, folder: Path) -> Content:
    """What a child process measures there; `failure` says why it did not come to its end."""
    with ExitStack() as stack:
        environment: Mapping[str, str] = {}
        if place == "mps":
            try:
                environment = stack.enter_context(mps_server())
            except (OSError, subprocess.SubprocessError) as error:
                return {"rows": [], "failure": "", "missing": f"MPS is not to be had here: {error}"}
        inside = folder / place
        inside.mkdir()
        plan, output = inside / "place.json", inside / "rows.json"
        _measured(options, place, folder).write(plan)
        command = (sys.executable, "-m", "benchmarks.boundary.worker", str(plan), str(output))
        failure = _run(command, {**os.environ, **environment}, options.place_seconds)
        found = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"rows": []}
        return {"failure": failure, **found}


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
    """Run a child with all that it starts; why it failed, empty if it did not."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as child:
        try:
            status = child.wait(seconds)
            return f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            return f"not done in {seconds:g} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def _measured(options: argparse.Namespace, place: str, folder: Path) -> Measured:
    on_gpu = place != "cpu"
    transports = tuple(name for name in options.transports if on_gpu or name != CUDA_IPC)
    return Measured(
        place=place,
        device="cuda:0" if on_gpu else "cpu",
        draft_device={"cpu": "cpu", "second": "cuda:1"}.get(place, "cuda:0"),
        settings=settings_of(
            transports,
            tuple(options.modes),
            states=not options.no_states,
            tree=(options.rows, options.depth),
            right=options.right,
            asleep=options.asleep,
        ),
        weights=options.weights,
        model=str(options.model.resolve()),
        shape=shape_of(options),
        engine_mode=options.engine_mode,
        size=round(options.draft_mb * 1e6),
        requests=options.requests,
        rounds=options.rounds,
        settle=options.settle,
        deadline=options.deadline_ms / 1e3,
        continuations=str(folder / "continuations.json"),
        folder=str(folder / place),
        attach_seconds=options.attach_seconds,
        head=options.head,
    )


def _keep(options: argparse.Namespace, content: Content) -> None:
    if options.output:
        write_json(options.output, content)


def _list(text: str) -> list[str]:
    return text.split(",")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.boundary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="what verify computes on (cuda)")
    add("--places", type=_list, help=f"of {','.join(PLACES)} (slicing,mps and, where there is one, second)")
    add("--transports", type=_list, default=list(TRANSPORTS), help=f"of {','.join(TRANSPORTS)} (all)")
    add("--modes", type=_list, default=["lockstep"], help=f"of {','.join(MODES)} (lockstep)")
    add("--head", default="", metavar="DIR[:OPTIONS]", help="EAGLE-3 head for mode behind, of the target's shapes")
    add("--no-states", action="store_true", help="of a proposer that asks for no hidden states (three boundaries)")
    add("--draft-mb", type=float, default=1000.0, help="megabytes that a tree's passes read (1000)")
    add("--rows", type=int, default=16, help="rows of a tree, root included (16)")
    add("--depth", type=int, default=5, help="levels of a tree, and passes of the draft (5)")
    add("--right", type=int, default=3, help="levels of each tree that are right (3)")
    add("--requests", type=int, default=1, help="requests that decode together (1)")
    add("--rounds", type=int, default=150, help="rounds that a figure is taken from (150)")
    add("--settle", type=int, default=16, help="rounds before (16)")
    add("--deadline-ms", type=float, default=1000.0, help="how long a round may wait for a tree (1000)")
    add("--asleep", action="store_true", help="also rounds at whose ends nobody spins")
    add("--attach-seconds", type=float, default=60.0, help="how long a draft service may take to attach (60)")
    add("--engine-mode", choices=("exact", "fast"), default="exact", help="of the target (exact)")
    add("--weights", choices=("inflated", "random", "folder"), default="inflated", help="of the target (inflated)")
    add("--model", type=Path, default=DEMO_MODEL, help="model whose text, or constants, are taken (the demo model)")
    add("--place-seconds", type=float, default=150.0, help="longest time for a place (150)")
    add("--output", type=Path, help="JSON file for the results")
    add("--plot", type=Path, help="picture of the rounds")
    add("--merge", type=Path, nargs="+", help="measure nothing: join the places of these files")
    add_shape_arguments(parser)
    options = parser.parse_args(arguments)
    if options.places is None:
        on_gpus = ["slicing", "mps", "second"] if len(gpu_uuids()) > 1 else ["slicing", "mps"]
        options.places = on_gpus if options.device == "cuda" else ["cpu"]
    known = {"places": PLACES, "transports": TRANSPORTS, "modes": MODES}
    for name, names in known.items():
        if unknown := set(getattr(options, name)) - set(names):
            parser.error(f"unknown {name}: {', '.join(sorted(unknown))}")
    if BEHIND in options.modes and not options.head:
        parser.error("mode behind needs --head DIR")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says whether every place came to its end."""
    options = parse(arguments)
    content = merged(options.merge) if options.merge else run(options)
    print(f"\n{text_of(content)}")
    _keep(options, content)
    if options.plot and rows_of(content):
        plot_boundary(options.plot, rows_of(content), "A verify round with the drafter in another process")
    return int(any(place["failure"] for place in content["places"].values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without its children, and MPS
    sys.exit(main())
