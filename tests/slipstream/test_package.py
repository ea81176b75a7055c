from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import slipstream
from slipstream.packages import child_environment, load_own

ROOT = Path(__file__).parents[2]


def test_the_version_of_the_distribution_is_the_packages_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).samefile(slipstream.__file__)
    # hatchling takes it from the text by a pattern, to which an annotation other than str is no version.
    lines = Path(slipstream.__file__).read_text("utf-8").splitlines()
    assert f'__version__ = "{slipstream.__version__}"' in lines


def test_offline_use_is_loaded_when_it_is_asked_for():
    code = (
        "import sys, slipstream; assert not {'launcher', 'tqdm', 'grpc'} & sys.modules.keys(); "
        "from slipstream import LLM, SamplingParams, RequestOutput, CompletionOutput; import launcher; "
        "assert LLM is launcher.LLM and SamplingParams is launcher.SamplingParams"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0


def test_every_name_that_is_offered_is_there():
    for name in slipstream.__all__:
        assert getattr(slipstream, name).__name__ == name
    assert set(slipstream.__all__) <= set(dir(slipstream))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = slipstream.nothing


def test_a_package_that_is_not_ours_is_not_loaded():
    with pytest.raises(ImportError, match="'json' of slipstream-server is not installed"):
        load_own("json.decoder")


def test_children_search_the_working_folder_in_the_checkout_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert child_environment() == {}
    monkeypatch.chdir(tmp_path)
    assert child_environment() == {"PYTHONSAFEPATH": "1"}
    tmp_path.rmdir()
    assert child_environment() == {"PYTHONSAFEPATH": "1"}
