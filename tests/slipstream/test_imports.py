from __future__ import annotations

import gc
import importlib

import pytest

from slipstream.imports import importing


def test_nobody_looks_for_garbage_within_nor_through_what_was_made_there() -> None:
    gc.unfreeze()
    try:
        with pytest.raises(ModuleNotFoundError), importing():
            importlib.import_module("slipstream.no_such_module")
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count()
        gc.disable()
        with importing():
            assert not gc.isenabled()
        assert not gc.isenabled(), "whoever wants none keeps none"
    finally:
        gc.unfreeze()
        gc.enable()
