"""What a head will read is known from what it is called, from its options and from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.head_boundaries import expected_boundaries

USUAL = (2, 6, 9)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 5, 8]}, (2, 5, 8)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}}, (2, 5, 8)),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, USUAL),
        ({}, USUAL),
        (None, USUAL),
    ],
)
def test_a_folder_may_name_them(tmp_path: Path, document: dict[str, Any] | None, expected: tuple[int, ...]) -> None:
    if document is not None:
        (tmp_path / "config.json").write_text(json.dumps(document))
    assert expected_boundaries("eagle3", str(tmp_path), 12) == expected
    assert expected_boundaries("eagle3", f"{tmp_path}:target=/models/x", 12) == expected


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("eagle3", "", USUAL),
        ("eagle3", "/missing:top_k=2:boundaries=1-2-3", (1, 2, 3)),
        ("eagle3", "/missing:boundaries=low", USUAL),
        ("medusa", "/missing:boundaries=4", (4,)),
        ("medusa", "/missing", (13,)),
        ("ngram", "", ()),
        ("own", "package:create", ()),
    ],
)
def test_options_and_names_tell_them(name: str, argument: str, expected: tuple[int, ...]) -> None:
    assert expected_boundaries(name, argument, 12) == expected
