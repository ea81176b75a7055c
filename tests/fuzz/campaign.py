"""A run over several targets, one process each at a time; a process that dies or hangs is a finding, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.child import PLACE
from fuzz.feeding import Finding, save
from fuzz.registry import CLASSES, kind_of

_HANG_SECONDS = 120.0
"""Of one input, on however busy a machine; it includes the start of a target."""
_LOOK_SECONDS = 1.0
_MOST_DEATHS = 20
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Outcome:
    """Of one target. `findings` counts inputs by signature."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)

    def add(self, result: Mapping[str, object]) -> None:
        """What one process has done."""
        self.inputs += int(str(result["inputs"]))
        self.seconds += float(str(result["seconds"]))
        self.slowest = max(self.slowest, float(str(result["slowest"])))
        found = result["findings"]
        assert isinstance(found, dict)
        for signature, count in found.items():
            self.findings[signature] = self.findings.get(signature, 0) + count


def shares(names: Sequence[str], inputs: int) -> dict[str, int]:
    """How many of so many inputs each target gets."""
    weights = {name: kind_of(name).share for name in names}
    counts = {name: inputs * weight // sum(weights.values()) for name, weight in weights.items()}
    counts[names[0]] += inputs - sum(counts.values())
    return counts


def run_target(name: str, seed: int, inputs: int, folder: Path) -> Outcome:
    """Feed one target; findings are written to `folder`."""
    outcome, begin = Outcome(name), 0
    for _ in range(_MOST_DEATHS):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").unlink(missing_ok=True)
        begun = time.monotonic()
        ended_at = _run_child(name, seed, begin, inputs, place)
        if (place / "result.json").is_file():
            outcome.add(json.loads((place / "result.json").read_text()))
            return outcome
        finding = _death(name, seed, ended_at, place)
        print(f"{save(finding, place)}\n{finding}", file=sys.stderr, flush=True)
        found = {finding.signature: 1}
        seconds = time.monotonic() - begun
        outcome.add({"inputs": ended_at + 1 - begin, "seconds": seconds, "slowest": 0.0, "findings": found})
        begin = ended_at + 1
        if begin >= inputs:
            break
    return outcome


def table(outcomes: Iterable[Outcome]) -> str:
    """In Markdown, the sum in the last line."""
    lines = [
        "| target | inputs | seconds | inputs a second | slowest, ms of processor | findings |",
        "|---|---|---|---|---|---|",
    ]
    total = Outcome("all")
    for outcome in outcomes:
        lines.append(_line(outcome))
        total.add({"inputs": outcome.inputs, "seconds": outcome.seconds, "slowest": outcome.slowest, "findings": {}})
        total.findings |= {f"{outcome.target} {key}": count for key, count in outcome.findings.items()}
    return "\n".join([*lines, _line(total)])


def _line(outcome: Outcome) -> str:
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0.0
    return (
        f"| {outcome.target} | {outcome.inputs:,} | {outcome.seconds:.0f} | {rate:,.0f} | "
        f"{outcome.slowest * 1e3:.0f} | {len(outcome.findings)} |"
    )


def _run_child(name: str, seed: int, begin: int, end: int, place: Path) -> int:
    """Returns the number of the input that was under way at the end."""
    paths = (_ROOT / "tests", _ROOT, _ROOT / "kernels", _ROOT / "protos")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "GRPC_VERBOSITY": "NONE",
    }
    numbers = map(str, (seed, begin, end))
    command = [sys.executable, "-m", "fuzz.child", name, *numbers, str(place)]
    at, moved = begin, time.monotonic()
    with (place / "stderr.txt").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        while True:
            try:
                process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                now = _place(place / "at", begin)
                if now != at:
                    at, moved = now, time.monotonic()
                elif time.monotonic() - moved > _HANG_SECONDS:
                    process.send_signal(signal.SIGABRT)
                    process.wait()
            else:
                return _place(place / "at", begin)


def _place(path: Path, otherwise: int) -> int:
    data = path.read_bytes() if path.is_file() else b""
    return max(otherwise, PLACE.unpack_from(data)[0]) if len(data) >= PLACE.size else otherwise


def _death(name: str, seed: int, index: int, place: Path) -> Finding:
    """The input is made anew, by a process that lives: its bytes died with the other."""
    script = (
        "import sys, tempfile, pathlib\nfrom fuzz.registry import started\nfrom fuzz.feeding import input_of\n"
        "with tempfile.TemporaryDirectory() as own:\n"
        "    target = started(sys.argv[1], pathlib.Path(own))\n"
        "    sys.stdout.buffer.write(input_of(target, int(sys.argv[2]), int(sys.argv[3])))\n"
    )
    paths = (_ROOT / "tests", _ROOT, _ROOT / "kernels", _ROOT / "protos")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", script, name, str(seed), str(index)]
    data = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, timeout=300).stdout
    log = (place / "stderr.txt").read_text(errors="replace")
    return Finding(name, seed, index, data, f"the process died or hung\n{log[-4000:]}")


ALL = tuple(CLASSES)
