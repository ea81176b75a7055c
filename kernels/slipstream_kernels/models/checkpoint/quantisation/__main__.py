"""`python -m slipstream_kernels.models.checkpoint.quantisation`, which `slipstream quantize` becomes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.quantisation.scheme import GROUPS

_DESCRIPTION = """Write the model in DIR with fewer bits a weight to OUT, each weight rounded to the nearest value.

OUT has the layout of compressed-tensors, which Slipstream and other engines serve. The embedding and the head stay as
they are; so do layers whose inputs are no multiple of a group, which are named. Nothing is calibrated.
"""


def main() -> int:
    """The exit status: 2 for what is refused."""
    parser = argparse.ArgumentParser(
        os.environ.get("SLIPSTREAM_QUANTIZE_NAME"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a model that is not quantised")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that is not there yet")
    parser.add_argument(
        "--format",
        choices=("fp8", "w4a16"),
        required=True,
        help="fp8: e4m3 with a scale for each row; w4a16: 4 bits with a scale for each group of a row",
    )
    parser.add_argument("--group", type=int, choices=GROUPS, default=128, help="elements of a group of w4a16 [128]")
    parser.add_argument(
        "--device", default="cpu", help="where weights are rounded, cpu or cuda, to the same files [cpu]"
    )
    options = parser.parse_args()
    if trouble := _trouble_with(options.device):
        parser.error(f"argument --device: {options.device!r} cannot be used here: {trouble}")
    try:
        form = RoundedFormat(options.format, options.group)
        report = quantise_folder(options.folder, options.out, form, options.device)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    sys.stdout.write(f"{options.out}: {report}\n")
    return 0


def _trouble_with(device: str) -> str:
    """Why weights cannot be rounded on a device; empty: they can."""
    try:
        if torch.device(device).type not in ("cpu", "cuda"):
            return "supported are cpu and cuda"
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # no such name, no such device, or a torch without it
        return str(error).splitlines()[0]
    return ""


if __name__ == "__main__":
    sys.exit(main())
