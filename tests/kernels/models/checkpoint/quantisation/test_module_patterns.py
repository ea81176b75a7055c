from __future__ import annotations

import time

import pytest

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.module_patterns import is_part, matches_name, names


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(a+)+$", "a repeat within a repeat"),
        ("(?:a*b)*", "a repeat within a repeat"),
        ("(a|(b+))+", "a repeat within a repeat"),
        (r"(a)\1", "references and assertions"),
        ("a(?=b)", "references and assertions"),
        (".*a.*b.*c.*d.*", "with 5 repeats, the limit is 4"),
        ("[", "unterminated character set"),
        ("a" * 513, "513 characters"),
        ("(" * 300, "has"),
    ],
)
def test_expressions_that_may_take_long_are_refused(expression: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        names([f"re:{expression}"], "ignore")


def test_the_worst_expressions_that_are_taken_end_soon() -> None:
    entries = names(["re:" + ".*" * 4 + "x"] * 64, "ignore")
    began = time.process_time()
    assert not any(matches_name(entry, "model.layers.31.self_attn.o_proj") for entry in entries)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("value", ["lm_head", [1], [""], {}, [["a"]]])
def test_what_is_no_list_of_names(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"ignore is .*, must be a list of names"):
        names(value, "ignore")


def test_too_many() -> None:
    with pytest.raises(CheckpointError, match="65 regular expressions, the limit is 64"):
        names(["re:a"] * 65, "ignore")
    with pytest.raises(CheckpointError, match="20000 entries"):
        names(["a"] * 20000, "ignore")


def test_usual_expressions() -> None:
    for entry in (
        "re:.*lm_head",
        "re:visual.*",
        r"re:.*mlp\.gate$",
        r"re:model\.layers\.(0|1|2)\..*_proj",
        "re:.*[qk]_proj",
    ):
        assert names([entry], "ignore") == (entry,)
    assert names(None, "ignore") == ()


def test_parts_of_a_name() -> None:
    assert is_part("layers.1", "model.layers.1.mlp") and not is_part("layers.1", "model.layers.10.mlp")
