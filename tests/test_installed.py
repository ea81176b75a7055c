"""The wheel's packages beside files that bear their names, without an extra, and with the demo models' distribution."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from launcher.services.free_ports import free_ports
from support.ask import wait_until
from support.installed import Installed, install, shell

PACKAGES = ("benchmarks", "draft_service", "gateway", "launcher", "training", "verify_service")
LIBRARIES = ("fastapi", "grpc", "json", "numpy", "slipstream", "slipstream_kernels", "torch", "typing")
STRANGER = "raise SystemExit(f'a stranger: {__file__}')\n"
SCRIPT = """
import sys
from slipstream import LLM, SamplingParams

with LLM(sys.argv[1], speculative_config={"method": "mine=own_proposer:create"}) as llm:
    (output,) = llm.generate("The harbour", SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    print(len(output.outputs[0].token_ids), output.outputs[0].usage.drafted_tokens)
"""
OWN_PROPOSER = """
from draft_service.proposers.ngram.ngram import create
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With all extras."""
    return install(tmp_path_factory.mktemp("whole"), extras=True)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Without any."""
    return install(tmp_path_factory.mktemp("bare"), extras=False)


def plant(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / f"{name}.py").write_text(STRANGER)
    return folder


def test_served_from_a_folder_full_of_strangers(whole: Installed, tiny_model: Path, tmp_path: Path) -> None:
    folder = plant(tmp_path, *PACKAGES, *LIBRARIES)
    ports = dict(zip(("http", "grpc", "verify", "draft"), free_ports(4), strict=True))
    command = [str(whole.slipstream), "serve", "--model", str(tiny_model), "--draft", "none"]
    command += [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
    log = folder / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=folder, env=shell(), stdout=output, stderr=output) as served,
    ):
        wait_until(lambda: "Slipstream is ready" in log.read_text() or served.poll() is not None, log.read_text)
        assert served.poll() is None, log.read_text()
        body = {"model": tiny_model.name, "prompt": "The harbour", "max_tokens": 4}
        answer = httpx.post(f"http://127.0.0.1:{ports['http']}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        served.send_signal(signal.SIGTERM)
        assert served.wait(120) == 0
    assert "a stranger" not in log.read_text()


def test_offline_beside_strangers_and_an_own_proposer(whole: Installed, tiny_model: Path, tmp_path: Path) -> None:
    # What a script imports itself comes from beside it, as everywhere; names that it does not import are no concern.
    script = plant(tmp_path, *PACKAGES) / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "own_proposer.py").write_text(OWN_PROPOSER)
    done = whole.run(whole.python, script, tiny_model, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tokens, drafted = map(int, done.stdout.split())
    assert tokens == 24
    assert drafted > 0


def test_a_module_that_took_our_name_is_named(whole: Installed, tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text("")
    done = whole.run(whole.python, "-c", "import launcher, slipstream; slipstream.LLM", cwd=tmp_path)
    assert done.returncode == 1
    assert f"ImportError: slipstream-server has a package 'launcher', but {tmp_path / 'launcher.py'}" in done.stderr


def test_training_beside_strangers(whole: Installed, tmp_path: Path) -> None:
    done = whole.run(whole.slipstream, "train", "--help", cwd=plant(tmp_path, *PACKAGES, *LIBRARIES))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("Usage: slipstream train ")


def test_a_service_of_its_own_beside_strangers(whole: Installed, tiny_model: Path, tmp_path: Path) -> None:
    command = [str(whole.python), "-P", "-m", "gateway", "--model", str(tiny_model), "--http-port=0", "--grpc-port=0"]
    folder = plant(tmp_path, *PACKAGES, *LIBRARIES)
    with subprocess.Popen(command, cwd=folder, env=shell(), stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        log = []
        for line in gateway.stderr:
            log.append(line)
            if listening := "gateway: listening http=" in line:
                gateway.send_signal(signal.SIGTERM)
                break
        assert listening, log


@pytest.mark.parametrize(
    ("arguments", "what", "extra", "module"),
    [
        (("-m", "launcher", "serve"), "slipstream serve", "serve", "torch"),
        (("-m", "launcher", "train", "prompts", "in", "-o", "out"), "slipstream train", "train", "datasketch"),
        (("-m", "gateway", "--model", "."), "the gateway", "gateway", "fastapi"),
        (("-m", "verify_service", "--model", "."), "the verify service", "device", "torch"),
        (("-m", "draft_service", "--proposer", "ngram"), "the draft service", "device", "numba"),
    ],
)
def test_a_missing_extra_is_named(
    bare: Installed, tmp_path: Path, arguments: tuple[str, ...], what: str, extra: str, module: str
) -> None:
    (tmp_path / "in").write_text('{"prompt": "A prompt"}\n')
    done = bare.run(bare.python, *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.splitlines()
    needs, _, command = line.partition(": ")
    assert needs.startswith(f"{what} needs ")
    assert module in needs.replace(",", "").split()
    assert command == f"pip install 'slipstream-server[{extra}]'"


def test_what_needs_no_extra_works_without(bare: Installed, tmp_path: Path) -> None:
    code = "import slipstream; print(slipstream.__version__); slipstream.Client('127.0.0.1:1'); slipstream.LLM('.')"
    done = bare.run(bare.python, "-c", code, cwd=tmp_path)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("slipstream.extras.MissingExtraError: LLM needs ") and "llvmlite, " in error
    assert done.stderr.endswith(": pip install 'slipstream-server[serve]'\n")
    assert bare.run(bare.slipstream, "--version", cwd=tmp_path).stdout == f"slipstream {done.stdout}"


def test_demo_models_are_found_where_their_distribution_is(
    whole: Installed, demo_model: Path, demo_draft_model: Path, tmp_path: Path
) -> None:
    code = (
        "import json; from launcher.services.models import *; from pathlib import Path; "
        "print(json.dumps([str(resolve_model(None)), str(resolve_model(Path('slipstream-demo'))), "
        "*resolve_draft(('draft-model',), demo=True)]))"
    )
    absent = whole.run(whole.slipstream, "serve", cwd=tmp_path)
    assert absent.returncode == 2
    assert "--model DIR, or install the wheel of slipstream-demo-models" in " ".join(absent.stderr.split())
    package = whole.packages / "slipstream_demo_models"
    package.mkdir()
    for model in (demo_model, demo_draft_model):
        (package / model.name).symlink_to(model)
    found = json.loads(whole.run(whole.python, "-c", code, cwd=tmp_path).stdout)
    target, draft = (str(package / model.name) for model in (demo_model, demo_draft_model))
    assert found == [target, target, f"draft-model:{draft}"]
