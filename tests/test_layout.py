"""What must be true of the repository as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "benchmarks", "draft_service", "gateway", "kernels/slipstream_kernels", "launcher", "loadtest", "protos/slipstream",
    "training", "verify_service",
)  # fmt: skip
CEILING = 400


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name]


def test_kernels_is_no_package_of_its_own():
    # `transformers` takes a top-level package named `kernels` for a library of that name.
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_transformers_works_beside_our_kernels_folder():
    code = "import slipstream_kernels; from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.stdout.strip() == "LlamaForCausalLM", run.stderr


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("gateway.server", {"torch", "numba", "slipstream_kernels", "verify_service", "draft_service"}),
        ("verify_service.server.command", {"fastapi", "uvicorn", "gateway", "draft_service"}),
        ("draft_service.server.server", {"fastapi", "uvicorn", "gateway", "verify_service"}),
        ("gateway.__main__", {"grpc"}),  # which reads its environment when it is imported, and gets it from main()
        ("verify_service.__main__", {"grpc"}),
        ("draft_service.__main__", {"grpc"}),
        ("launcher.cli.app", {"torch", "numba", "slipstream_kernels", "gateway", "verify_service", "draft_service"}),
        ("slipstream", {"torch", "numba", "slipstream_kernels"}),
        ("slipstream_kernels.models.cpu.causal_lm", {"grpc", "google.protobuf", "slipstream"}),
    ],
)
def test_no_service_loads_what_is_not_its_own(module, forbidden):
    code = f"import sys, importlib; importlib.import_module({module!r}); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert not forbidden & set(run.stdout.split())


def test_every_file_fits_the_ceiling():
    long = {str(path.relative_to(ROOT)): count for path in sources() if (count := line_count(path)) > CEILING}
    assert not long


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_generated_stubs_are_not_in_git():
    listed = subprocess.run(["git", "ls-files", "*_pb2*"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.stdout == ""


def test_every_proto_has_its_stub():
    for proto in (ROOT / "protos" / "slipstream" / "v1").glob("*.proto"):
        assert proto.with_name(f"{proto.stem}_pb2.py").exists()
