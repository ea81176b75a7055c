"""What starts a GPU for a process, done beside the imports: its libraries are loaded, its driver makes a context.

Both take seconds in which no Python runs, and whoever comes to need them first would wait for all of it.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from slipstream_kernels.ipc.cuda_driver import DRIVER

_PRELOADED: Final = (("libtorch_global_deps.so", ctypes.RTLD_GLOBAL), ("libtorch_cuda.so", ctypes.RTLD_LOCAL))
"""As torch loads them when it is imported, but for what needs the interpreter."""


def begin_start(device: str) -> threading.Thread | None:
    """Begin on a thread; None for a `device` that is none of CUDA. What fails here fails again where it is needed."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    thread = threading.Thread(target=_start, args=(int(index or 0),), name="device-start", daemon=True)
    thread.start()
    return thread


def _start(index: int) -> None:
    with suppress(OSError):
        load_libraries()
    with suppress(OSError, AttributeError):
        make_context(index)


def load_libraries() -> None:
    """Load torch's libraries for CUDA. OSError where it has none."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise OSError("torch is not installed")
    folder = Path(found.origin).parent / "lib"
    for name, mode in _PRELOADED:
        ctypes.CDLL(str(folder / name), mode)


def make_context(index: int, driver: str = DRIVER) -> bool:
    """Have the driver make the context that all libraries share, of the visible GPU of a number; whether it has.

    OSError without a driver, AttributeError for one that lacks what is called.
    """
    cuda = ctypes.CDLL(driver)
    initialise, get_device, retain = (cuda[name] for name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return not (initialise(0) or get_device(ctypes.byref(device), index) or retain(ctypes.byref(context), device))
