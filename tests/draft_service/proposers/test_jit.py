from __future__ import annotations

from pathlib import Path

from draft_service.proposers import jit
from draft_service.proposers.ngram import index
from draft_service.proposers.suffix import nodes, search, tree
from slipstream_kernels.jit.compiler import cache_folder, numba_config


def test_every_file_with_compiled_code_is_in_the_digest() -> None:
    folder = Path(jit.__file__).parent
    with_code = [path for path in folder.rglob("*.py") if "@compiled" in path.read_text()]
    assert len(with_code) >= 4
    assert all("slipstream_kernels.jit.intrinsics" in path.read_text() for path in with_code)


def test_code_is_cached_below_the_projects_folder() -> None:
    for function in (
        index.look_up, nodes.initialise, search.search, tree.append_staged
    ):  # fmt: skip
        assert Path(function._cache.cache_path).is_relative_to(cache_folder())
    assert str(cache_folder()) != numba_config.CACHE_DIR
