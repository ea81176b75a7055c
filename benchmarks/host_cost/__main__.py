"""What the host does for a round of speculation: processor time and calls of functions, on any machine without a GPU.

    python -m benchmarks.host_cost [--requests 1,16,64] [--forms "in process,service"] [--functions 20]

The verify loop, the draft link and the host's side of the model and of an EAGLE-3 head run as in serving, over a device
whose kernels do nothing (`silent_device.py`); clients are a list in memory. A round is one launch to the next. Columns:

    loop ms      processor time of the loop's thread a round, median; `least` is the 10th percentile
    critical ms  of it, from a step's results until the device has the next pass; 0 where it has it by then
    draft ms     processor time of the draft service's thread a round
    calls        of functions of Python and C, a request and round, which no neighbour on the machine disturbs

Then the loop's time by part. Figures of one machine compare with one another alone; the calls with those of any.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.host_cost.forms import FORMS
from benchmarks.host_cost.measure import HostCost, measure
from benchmarks.host_cost.parts import DRAFT_THREAD, LOOP_THREAD
from benchmarks.lib.report import machine, markdown_table, write_json

SWITCH_SECONDS = 5e-4
"""How long a thread of Python waits for another one that does not rest, as in the verify service."""


def main() -> None:
    """Print the tables."""
    options = _options()
    sys.setswitchinterval(SWITCH_SECONDS)
    costs: list[HostCost] = []
    for form in options.forms.split(","):
        for requests in map(int, options.requests.split(",")):
            cost = measure(form, requests, options.rounds, options.pass_ms / 1e3, options.rows)
            costs.append(cost)
            print(f"\n{form}, {requests} requests, {cost.tokens:.2f} tokens a round\n", flush=True)
            print(_parts_table(cost))
            for thread in (LOOP_THREAD, DRAFT_THREAD) if options.functions else ():
                found = list(cost.functions.get(thread, {}).items())[: options.functions]
                print(f"\n{thread}: " + "; ".join(f"{name} {calls / requests:.2f}" for name, calls in found))
    print("\n" + _table(costs))
    if options.output:
        write_json(options.output, {"machine": machine(), "costs": [asdict(cost) for cost in costs]})


def _table(costs: list[HostCost]) -> str:
    header = ["form", "requests", "loop ms", "least ms", "critical ms", "draft ms", "loop calls", "draft calls"]
    rows = [
        [
            cost.form,
            cost.requests,
            cost.loop,
            cost.loop_least,
            cost.critical,
            cost.draft,
            cost.calls.get(LOOP_THREAD),
            cost.calls.get(DRAFT_THREAD),
        ]
        for cost in costs
    ]
    return markdown_table(header, rows)


def _parts_table(cost: HostCost) -> str:
    rows = [
        [thread, name, spent, 1e3 * spent / cost.requests]
        for thread, parts in cost.parts.items()
        for name, spent in parts.items()
    ]
    return markdown_table(["thread", "part", "ms a round", "us a request"], rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="1,16,64", help="requests that decode at once (default: %(default)s)")
    parser.add_argument("--forms", default=",".join(FORMS), help="where the head runs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each figure (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=4, help="rows of a tree, root included (default: %(default)s)")
    parser.add_argument("--pass-ms", type=float, default=12.0, help="how long a pass takes (default: %(default)s)")
    parser.add_argument("--functions", type=int, default=0, help="functions called most to be named, of each thread")
    parser.add_argument("--output", type=Path, help="file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
