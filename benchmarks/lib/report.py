"""What the benchmarks share for showing results: tables, JSON files, facts about the machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.repository import ROOT


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with aligned columns; floats with two digits, None as a dash."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def plain_options(options: argparse.Namespace) -> dict[str, Any]:
    """Options as JSON has them; of paths their names, as folders are those of one machine."""
    return {name: value.name if isinstance(value, Path) else value for name, value in vars(options).items()}


def machine() -> dict[str, Any]:
    """Facts a figure cannot be read without: processor, cores, load, versions, time."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def gpu_machine(device: str) -> dict[str, Any]:
    """Facts as `machine`, and of a GPU: its name, the driver's version, CUDA, Triton, and this source's commit."""
    import torch

    facts = machine() | {"device": device, "commit": _commit()}
    if not device.startswith("cuda"):
        return facts
    properties = torch.cuda.get_device_properties(device)
    return facts | {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
        "triton": importlib.metadata.version("triton"),
    }


def _commit() -> str:
    """The environment's SLIPSTREAM_COMMIT, which a tree that was unpacked without git has; else what git says."""
    given = os.environ.get("SLIPSTREAM_COMMIT", "")
    return given or _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
