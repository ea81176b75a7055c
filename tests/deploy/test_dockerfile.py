"""What the Dockerfile puts into which image, and in which layers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.compose import DEPLOY, ROOT, ancestry, compose, stages

SERVICES = {"gateway": {"gateway"}, "verify": {"verify_service"}, "draft": {"draft_service"}}
SERVICES["all"] = set().union(*SERVICES.values())


@pytest.fixture(scope="module")
def requirements():
    spec = importlib.util.spec_from_file_location("requirements_of_images", DEPLOY / "requirements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", SERVICES)
def test_an_image_has_the_packages_that_it_runs_and_no_other_service(target):
    (package,) = {name for name in stages()[target].mounted if name.endswith("-package")}
    copied = {name for stage in ancestry(package) for rest in stage.all("COPY") for name in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert copied & SERVICES["all"] == SERVICES[target]
    assert {"launcher", "protos", "pyproject.toml"} <= copied
    assert ("kernels" in copied) == (target != "gateway")


@pytest.mark.parametrize("target", SERVICES)
def test_dependencies_are_layers_of_their_own_before_the_source(target):
    own, *below = ancestry(target)
    assert not any(stage.all("COPY") for stage in [own, *below])  # a source that changes would change all that follows
    installs = [rest for stage in below for rest in stage.all("RUN") if "pip install" in rest]
    assert installs
    assert all("type=cache,target=/var/cache/pip" in rest and "from=requirements" in rest for rest in installs)
    assert "PIP_CACHE_DIR=/var/cache/pip" in below[-1].all("ENV")[0]


def test_verify_and_draft_have_their_dependencies_in_common():
    assert stages()["verify"].base == stages()["draft"].base == stages()["all-dependencies"].base


@pytest.mark.parametrize("target", SERVICES)
def test_an_image_has_a_user_and_a_home_that_takes_files_on_a_read_only_root(target):
    line = ancestry(target)
    assert line[0].all("USER") == ["10001:10001"]
    assert line[0].all("ENV") == ["HOME=/cache"]
    assert any("install -d -m 1777 /cache" in rest for stage in line for rest in stage.all("RUN"))


def test_images_for_a_gpu_and_no_others_have_a_c_compiler():
    for target in ("verify", "draft", "all"):
        for device in ("cpu", "gpu"):
            commands = [rest for stage in ancestry(target, device) for rest in stage.all("RUN")]
            assert any("gcc libc6-dev" in rest for rest in commands) == (device == "gpu")


def test_images_without_a_gpu_take_pytorch_for_the_cpu_unless_told_otherwise():
    for services, index in ((compose()["services"], "https://download.pytorch.org/whl/cpu"), (no_index(), "")):
        for name, service in services.items():
            if "build" not in service:
                continue
            arguments = service["build"]["args"]
            on_gpu = arguments["DEVICE"] == "gpu"
            assert on_gpu == ("gpu" in name or name == "mps")
            assert arguments["PIP_EXTRA_INDEX_URL"] == ("" if on_gpu else index)


def no_index():
    return compose(PIP_EXTRA_INDEX_URL="")["services"]


def test_what_is_installed_ahead_is_what_the_package_asks_for(requirements):
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    gpu = requirements.requirements(pyproject, ["device", "gpu"])
    assert set(gpu) == {*project["dependencies"], *extras["device"], *extras["gpu"]}
    served = requirements.requirements(pyproject, ["serve"])
    assert set(served) == {*project["dependencies"], *extras["device"], *extras["gateway"]}
    assert len(served) == len(set(served))
    with pytest.raises(KeyError, match="none-such"):
        requirements.requirements(pyproject, ["none-such"])


def test_the_build_system_is_printed_too(tmp_path):
    for path in (ROOT / "pyproject.toml", DEPLOY / "requirements.py"):
        (tmp_path / path.name).write_text(path.read_text())
    command = [sys.executable, str(Path(tmp_path, "requirements.py")), "build-system"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert printed == tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
