"""Build hook: Python stubs of the protos, generated beside them for editable installs and wheels alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateStubs(BuildHookInterface):  # type: ignore[type-arg]  # the hook takes no builder configuration
    """Runs protoc over protos/slipstream/v1. Fails the build if a proto does not compile."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stubs before hatchling collects files."""
        generate(Path(self.root) / "protos")


def generate(root: Path) -> None:
    """Generate `*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` for every proto below `root`, in place."""
    from importlib.resources import files

    from grpc_tools import protoc

    sources = sorted(str(path) for path in root.glob("slipstream/v*/*.proto"))
    well_known = str(files("grpc_tools").joinpath("_proto"))
    outputs = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{root}", f"-I{well_known}", *outputs, *sources]) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(sources)}")


if __name__ == "__main__":
    generate(Path(__file__).parent / "protos")
