"""One target in a process of its own, with bounded memory: `python -m fuzz.child TARGET SEED BEGIN END FOLDER`.

The number of the input under way stands in FOLDER/at, so that it is known whatever ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import resource
import struct
import sys
import tempfile
from pathlib import Path

from fuzz.feeding import Finding, feed, save
from fuzz.registry import started

MOST_BYTES = 6 << 30
"""Address space beyond what the process has once the target is started."""
PLACE = struct.Struct("<q")
_PAGE = 4096
_MOST_KEPT = 3
"""Findings of one signature that are written."""
_MEMORY = Path("/dev/shm")


def main() -> None:
    """Feeds inputs BEGIN to END - 1, before them the kept ones where BEGIN is 0; what came of it goes to FOLDER."""
    name, seed, begin, end, folder = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    faulthandler.enable()
    counts: dict[str, int] = {}

    def report(finding: Finding) -> None:
        counts[finding.signature] = counts.get(finding.signature, 0) + 1
        if counts[finding.signature] == 1:
            print(f"{save(finding, folder)}\n{finding}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as own,
        (folder / "at").open("w+b") as file,
    ):
        file.truncate(_PAGE)
        place = mmap.mmap(file.fileno(), _PAGE)
        target = started(name, Path(own))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, resource.RLIM_INFINITY))
        fed = feed(target, seed, begin, end, report, kept=begin == 0, at=lambda index: PLACE.pack_into(place, 0, index))
        target.close()
    result = {"inputs": fed.inputs, "seconds": fed.seconds, "slowest": fed.slowest, "findings": counts}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
