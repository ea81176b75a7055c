"""The packages of this distribution, whatever else bears their names: `gateway.py` is a likely file of anybody's."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final

_INSTALLED: Final = Path(__file__).resolve().parents[1]
_CHECKOUT: Final = _INSTALLED.parent
"""Where the packages lie in a checkout; this one lies in its folder protos."""


def child_environment() -> dict[str, str]:
    """What to add to the environment of `python -m MODULE`, so that the working folder hides no module of ours.

    Nothing, where the working folder is the checkout itself: its packages may be found by that alone.
    """
    try:
        at_home = Path.cwd() == _CHECKOUT
    except FileNotFoundError:
        at_home = False
    return {} if at_home else {"PYTHONSAFEPATH": "1"}


def load_own(module: str) -> ModuleType:
    """Import a module of a package that is installed beside this one, even if the caller's folder has its name.

    ImportError if the caller has already imported something else by that name.
    """
    package = module.partition(".")[0]
    spec = PathFinder.find_spec(package, [str(_INSTALLED), str(_CHECKOUT)])
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"the package {package!r} of slipstream-server is not installed beside {__package__!r}")
    loaded = sys.modules.get(package)
    if loaded is None:
        loaded = module_from_spec(spec)
        sys.modules[package] = loaded
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[package]
            raise
    elif not _same_file(loaded.__file__, spec.origin):
        raise ImportError(
            f"slipstream-server has a package {package!r}, but {loaded.__file__ or 'something else'} is imported by "
            f"that name; rename that module, or import slipstream's LLM in another process"
        )
    return import_module(module)


def _same_file(one: str | None, other: str) -> bool:
    return one is not None and Path(one).resolve() == Path(other).resolve()
