"""The GPUs that this process sees, asked of the driver alone: no library is loaded and no context made for it."""

from __future__ import annotations

import ctypes
from uuid import UUID

DRIVER = "libcuda.so.1"
_UUID_BYTES = 16
_MPS_ENABLED = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older drivers do not know."""


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


def is_mps_client(index: int, driver: str = DRIVER) -> bool:
    """Whether this process is a client of NVIDIA MPS on the visible GPU of a number."""
    try:
        cuda = ctypes.CDLL(driver)
        initialise, get_device, get_attribute = (
            cuda[name] for name in ("cuInit", "cuDeviceGet", "cuDeviceGetAttribute")
        )
    except (OSError, AttributeError):
        return False
    device, enabled = ctypes.c_int(), ctypes.c_int()
    failed = initialise(0) or get_device(ctypes.byref(device), index)
    return not failed and not get_attribute(ctypes.byref(enabled), _MPS_ENABLED, device) and enabled.value == 1
