"""`python -m fuzz`: a run over all targets, or the repetition of one input. `make fuzz ARGS="..."` calls it.

Examples:
    make fuzz                                          200,000 inputs over all targets, seed 1
    make fuzz ARGS="--inputs 1000000 --seed 3"         the long run that docs/reliability.md records
    make fuzz ARGS="--targets http_parser,texts"       some targets
    make fuzz ARGS="--repeat http_parser:3:1234"       one input again, by target, seed and number
    make fuzz ARGS="--repeat http_parser:file.bin"     one input again, by its bytes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from fuzz.campaign import ALL, run_target, shares, table
from fuzz.feeding import input_of
from fuzz.registry import started
from fuzz.watch import Watch


def main() -> None:
    """Exits with status 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200_000, help="inputs over all targets together")
    parser.add_argument("--seed", type=int, default=1, help="every input is a function of target, seed and number")
    parser.add_argument("--targets", default=",".join(ALL), help=f"of {', '.join(ALL)}")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder of the findings' inputs")
    parser.add_argument("--repeat", help="TARGET:SEED:NUMBER or TARGET:FILE")
    arguments = parser.parse_args()
    if arguments.repeat:
        _repeat(*arguments.repeat.split(":"))
        return
    names = arguments.targets.split(",")
    outcomes, begun = [], time.monotonic()
    for name, inputs in shares(names, arguments.inputs).items():
        outcomes.append(run_target(name, arguments.seed, inputs, arguments.out))
        print(f"{name}: {outcomes[-1]}", file=sys.stderr, flush=True)
    print(f"seed {arguments.seed}, {time.monotonic() - begun:.0f} s\n\n{table(outcomes)}")
    sys.exit(any(outcome.findings for outcome in outcomes))


def _repeat(name: str, which: str, number: str = "") -> None:
    with tempfile.TemporaryDirectory() as own, Watch() as watch:
        target = started(name, Path(own))
        data = input_of(target, int(which), int(number)) if number else Path(which).read_bytes()
        print(f"{len(data)} bytes: {data[:2000]!r}")
        watch.begin()
        target.check(data)
        watch.end()
        target.settle()
        target.close()
        print(f"nothing found; {watch.slowest * 1e3:.1f} ms of processor time")


if __name__ == "__main__":
    main()
