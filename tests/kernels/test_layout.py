"""kernels/ is a source root, never a package: transformers looks for a package of that name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"


def test_kernels_is_no_package() -> None:
    assert not (KERNELS / "__init__.py").exists()
    spec = importlib.util.find_spec("slipstream_kernels")
    assert spec is not None and Path(str(spec.origin)).parent == KERNELS / "slipstream_kernels"


def test_transformers_imports_beside_it() -> None:
    code = "import transformers; transformers.AutoModelForCausalLM; import slipstream_kernels"
    path = [str(KERNELS.parent), str(KERNELS)]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"], check=True, timeout=120)
