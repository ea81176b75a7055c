"""kernels/ is a source root, never a package: transformers looks for a package of that name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"


def test_kernels_is_no_package() -> None:
    assert not (KERNELS / "__init__.py").exists()
    spec = importlib.util.find_spec("slipstream_kernels")
    assert spec is not None and Path(str(spec.origin)).parent == KERNELS / "slipstream_kernels"
