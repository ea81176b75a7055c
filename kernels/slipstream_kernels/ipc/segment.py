"""Anonymous memory that another process of this host can map, and that is gone when the last one that maps it is."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import sys
import weakref

_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class SegmentError(OSError):
    """Memory cannot be shared here, or what was named is not what was meant."""


class Segment:
    """A shared mapping of fixed size.

    The memory has no name in any file system: the kernel frees it with its last mapping, however the processes ended.
    Its size is sealed, so that a peer cannot take pages from under a mapping, and its pages are taken at once. It is
    unmapped when neither the segment nor any view of `memory` is left.
    """

    __slots__ = ("_descriptor", "memory")

    def __init__(self, memory: memoryview, descriptor: int | None) -> None:
        self.memory = memory
        self._descriptor = descriptor

    @classmethod
    def create(cls, size: int) -> Segment:
        """Zeroed memory of `size` bytes. SegmentError where there is none or it cannot be sealed."""
        if sys.platform != "linux":
            raise SegmentError("memory without a name needs Linux")
        try:
            descriptor = os.memfd_create("slipstream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SegmentError(f"no shared memory: {error}") from error
        try:
            os.posix_fallocate(descriptor, 0, size)
            seals = 0
            for name in _SEALS:
                seals |= getattr(fcntl, name)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            return cls(_map(descriptor, size), descriptor)
        except OSError as error:
            os.close(descriptor)
            raise SegmentError(f"no {size} bytes of shared memory: {error}") from error

    @classmethod
    def open(cls, path: str, size: int) -> Segment:
        """Map what another process created and calls `path`. SegmentError if that is out of reach or of another size.

        The path may be anything where the other process lives in other namespaces: nothing is written here.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError) as error:
            raise SegmentError(f"cannot open {path}: {error}") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise SegmentError(f"{path} is not the memory that was meant")
            return cls(_map(descriptor, size), None)
        except OSError as error:
            raise SegmentError(f"cannot map {path}: {error}") from error
        finally:
            os.close(descriptor)

    @property
    def path(self) -> str:
        """What a process of the same user and process namespace may open as long as `hide` has not been called."""
        assert self._descriptor is not None
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def hide(self) -> None:
        """Nobody else can map the memory from now on. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.hide()


def _map(descriptor: int, size: int) -> memoryview:
    """The shared mapping of a file. Unlike mmap.mmap it keeps no descriptor, by which others could open the file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: threads that outlive the interpreter may still look at it, and the kernel unmaps it then.
    weakref.finalize(pages, libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B")
