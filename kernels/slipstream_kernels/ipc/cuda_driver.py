"""The GPUs that this process sees, asked of the driver alone: no library is loaded and no context made for it."""

from __future__ import annotations

import ctypes
from uuid import UUID

DRIVER = "libcuda.so.1"
_UUID_BYTES = 16


def gpu_uuids(driver: str = DRIVER) -> tuple[str, ...]:
    """UUIDs of the visible GPUs in the order of their numbers, as `GPU-xxxxxxxx-...`; none without a driver."""
    try:
        cuda = ctypes.CDLL(driver)
        initialise, count_devices, get_device, get_uuid = (
            cuda[name] for name in ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2")
        )
    except (OSError, AttributeError):
        return ()
    count = ctypes.c_int()
    if initialise(0) or count_devices(ctypes.byref(count)):
        return ()
    uuids: list[str] = []
    for index in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
        if get_device(ctypes.byref(device), index) or get_uuid(ctypes.byref(uuid), device):
            return ()
        uuids.append(f"GPU-{UUID(bytes=bytes(uuid))}")
    return tuple(uuids)
