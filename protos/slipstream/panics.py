"""Panics of Rust libraries, which pyo3 raises as an exception that is no `Exception`."""

from __future__ import annotations


def is_panic(error: BaseException) -> bool:
    """Whether `error` is a Rust panic. Its class cannot be imported: every extension module makes its own."""
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("pyo3_runtime", "PanicException")
