"""What the verify service holds while something is done to its drafters, and whether it holds ever more."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.process_samples import FLAT_BYTES, FLAT_DESCRIPTORS, device_bytes

FLAT_DEVICE_BYTES = 16 << 20
"""What memory of the GPU may grow by, for each draft service."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident bytes and open descriptors of a process at some time.perf_counter(); to take one holds nobody up."""

    at: float
    resident: int
    descriptors: int

    @classmethod
    def of(cls, process: int) -> Sample:
        folder = Path(f"/proc/{process}")
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(time.perf_counter(), resident, sum(1 for _ in (folder / "fd").iterdir()))


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the verify service's process holds, in bytes and numbers, and all processes together on the GPU."""

    resident: int
    descriptors: int
    rings: int
    device: int

    @classmethod
    def of(cls, process: int) -> Holdings:
        sample = Sample.of(process)
        rings = Path(f"/proc/{process}/maps").read_text().count("memfd:slipstream")
        return cls(sample.resident, sample.descriptors, rings, device_bytes())

    def facts(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def held(before: Holdings, during: Sequence[Sample], after: Holdings, drafters: int) -> dict[str, Any]:
    """Holdings without load before and after, the samples in between, and what of them is more than it should be.

    Of resident memory the second half of the samples counts, by their number: the first traffic touches memory that
    was set aside at the start, such as pages of the prefix cache, while a leak grows with every fault to the end.
    """
    curve = [before.resident, *(sample.resident for sample in during), after.resident]
    middle = curve[(len(curve) - 1) // 2]
    grown = {
        "resident": after.resident - middle > FLAT_BYTES,
        "device": after.device - before.device > drafters * FLAT_DEVICE_BYTES,
        "descriptors": after.descriptors - before.descriptors > FLAT_DESCRIPTORS,
        "rings": after.rings > before.rings,
    }
    return {
        "held_before": before.facts(),
        "held_during": {
            "seconds": [round(sample.at - during[0].at, 1) for sample in during],
            "resident_mib": [_mib(sample.resident) for sample in during],
            "descriptors": [sample.descriptors for sample in during],
        },
        "held_after": after.facts(),
        "resident_grown_mib": {"first_half": _mib(middle - before.resident), "second": _mib(after.resident - middle)},
        "grown": [name for name, is_so in grown.items() if is_so],
    }


def _mib(count: int) -> float:
    return round(count / 2**20, 1)
