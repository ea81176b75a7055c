"""Fixtures shared by all tests: models and running clusters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from support.answer_diff import explain
from support.cluster import Cluster
from support.forked import NEEDED, Forks
from support.forked_services import forks_after

# The services under test share two cores with the test itself.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Operations of numpy and torch are small here: a second thread costs more than it saves, most of all beside other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Heads of random weights can stand no check of their boundaries, which would take part of a second at each start.
os.environ.setdefault("SLIPSTREAM_DRAFT_BOUNDARY_CHECK", "false")
# Triton is interpreted where there is no GPU; it settles that when the first test imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

ROOT = Path(__file__).parent.parent

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ours beside pytest's."""
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Answers that differ are told by the token."""
    return explain(left, right) if op == "==" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked slow or gpu say why they do not run."""
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="runs with --slow"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # which many runs do without

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers."""
    from support.models import make_tiny_model  # brings torch, which many tests do without

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-target")


@pytest.fixture(scope="session")
def tiny_draft_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of one layer on the tokenizer of `tiny_model`."""
    from support.models import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-draft", seed=1, layers=1)


def _shipped(name: str) -> Path:
    folder = ROOT / "demo_models" / name
    if not (folder / "config.json").is_file():
        pytest.fail(f"{folder} is missing: the models travel with the source")
    return folder


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The chat model that travels with the project."""
    return _shipped("slipstream-demo")


@pytest.fixture(scope="session")
def demo_draft_model() -> Path:
    """The draft model that travels with the project."""
    return _shipped("slipstream-demo-draft")


@pytest.fixture(scope="session")
def demo_head() -> Path:
    """The demo model's EAGLE-3 head."""
    return _shipped("slipstream-demo-eagle3")


@pytest.fixture(scope="session")
def forks() -> Forks:
    """Runs commands of the services that end by themselves, without the time that their imports take."""
    return forks_after(NEEDED)[0]


@pytest.fixture(scope="session")
def tiny_cluster(tiny_model: Path, tiny_draft_model: Path) -> Iterator[Cluster]:
    """All three services on the tiny model, both proposers attached. Shared: leave it as it was."""
    with Cluster(tiny_model, draft=(f"draft-model:{tiny_draft_model}", "ngram")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def patient_cluster(tiny_model: Path, tiny_draft_model: Path) -> Iterator[Cluster]:
    """As `tiny_cluster`, but steps wait for trees as long as a busy machine may take to make them."""
    patience = ("--draft-deadline-ms", "5000")
    with Cluster(tiny_model, draft=(f"draft-model:{tiny_draft_model}", "ngram"), verify_args=patience) as cluster:
        yield cluster
