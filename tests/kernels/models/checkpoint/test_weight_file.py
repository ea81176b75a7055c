from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.weight_file import header_size, open_weights


def write(path: Path, header: dict[str, Any], body: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + body)
    return path


def entry(dtype: str, shape: list[Any], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_names_shapes_and_types_are_known_before_anything_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.arange(4)}, tmp_path / "w")
    with open_weights(tmp_path / "w") as file:
        assert sorted(file.names) == ["a", "b"]
        assert (file.shape("a"), file.dtype("a"), file.dtype("b")) == ((2, 3), "BF16", "I64")
        assert torch.equal(file.read("b"), torch.arange(4))


@pytest.mark.parametrize(
    ("header", "body", "length"),
    [
        ({"a": entry("F32", [1], 0, 4)}, b"1234", 1 << 40),
        ({"a": entry("F32", [1], 0, 4)}, b"1234", 200),
        ({"a": entry("F32", [2], 0, 4)}, b"1234", None),
        ({"a": entry("F32", [1], 0, 4)}, b"12", None),
        ({"a": entry("F32", [1], 4, 8)}, b"12345678", None),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"1234", None),
        ({"a": entry("F32", [2**40, 2**40], 0, 4)}, b"1234", None),
        ({"a": entry("F32", [-1], 0, 4)}, b"1234", None),
        ({"a": entry("F31", [1], 0, 4)}, b"1234", None),
        ({"a": [1]}, b"", None),
    ],
)
def test_a_header_that_lies_is_refused(header: dict[str, Any], body: bytes, length: int | None, tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", header, body, length)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: ") as raised, open_weights(path):
        pass
    assert "\n" not in str(raised.value)


def test_the_length_of_a_header_is_compared_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {}, length=1 << 40)
    with pytest.raises(CheckpointError, match=r"the header has 1099511627776 bytes, the limit is 2$"):
        header_size(path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="the header has 1099511627776 bytes"):
        fingerprint(tmp_path)
    path.write_bytes(b"12")
    with pytest.raises(CheckpointError, match="the limit is 0"):
        header_size(path)


def test_types_of_quantised_weights_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4).to(torch.float8_e4m3fn)}, tmp_path / "w")
    with open_weights(tmp_path / "w") as file, pytest.raises(CheckpointError, match="a has dtype F8_E4M3"):
        file.read("a")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w")
    with pytest.raises(CheckpointError, match="not a regular file"), open_weights(tmp_path / "w"):
        pass
