"""Where proposers compute: the CPU, or a GPU that is known to verify by its UUID."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.ipc.cuda_driver import gpu_uuids, is_mps_client


@dataclass(frozen=True, slots=True)
class Placement:
    """A device as torch names it, `cpu` or `cuda:N`, the UUID of that GPU, and whether it is shared by MPS."""

    device: str = "cpu"
    gpu_uuid: str = ""
    mps: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.device != "cpu"

    @property
    def gpu_index(self) -> int:
        """Of that GPU among the visible ones; 0 for the CPU."""
        return int(self.device.partition(":")[2] or 0)


CPU = Placement()


def placed(device: str) -> Placement:
    """The placement of a device that is in use, `cpu` or `cuda:N`."""
    uuids, index = gpu_uuids() if device != CPU.device else (), device.partition(":")[2] or "0"
    return Placement(device, uuids[int(index)] if index.isdigit() and int(index) < len(uuids) else "")


def settle(wanted: str) -> Placement:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`; auto is the first GPU where one can be used, else the CPU.

    FailedPreconditionError where a GPU is asked for that is not there. torch is not imported: services whose
    proposers need none do without.
    """
    if wanted == "cpu":
        return CPU
    uuids = gpu_uuids()
    if wanted == "auto":
        return Placement("cuda:0", uuids[0], is_mps_client(0)) if uuids and _torch_has_cuda() else CPU
    index = int(wanted.partition(":")[2] or 0)
    if not _torch_has_cuda():
        raise FailedPreconditionError(f"--device {wanted} is not available: there is no PyTorch with CUDA")
    if index >= len(uuids):
        raise FailedPreconditionError(f"--device {wanted} is not available: there are {len(uuids)} GPUs")
    return Placement(f"cuda:{index}", uuids[index], is_mps_client(index))


def _torch_has_cuda() -> bool:
    found = find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())
