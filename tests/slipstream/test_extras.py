from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from slipstream.extras import DISTRIBUTION, MODULES

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def distributions(extra: str) -> set[str]:
    """Names of what an extra brings, those of other extras of ours included."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()
        found |= {each for part in inner.split(",") for each in distributions(part)} if name == DISTRIBUTION else {name}
    return found


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_of_an_extra_are_those_of_its_packages(extra):
    known = packages_distributions()
    if extra == "cluster" and "ray" not in known:
        pytest.skip("Ray is not installed, which the extra `cluster` brings")
    named = {name.lower().replace("_", "-") for module in MODULES[extra] for name in set(known[module])}
    assert named == distributions(extra)
