"""`slipstream quantize` becomes a module of the kernels."""

from __future__ import annotations

import json
import subprocess
import sys

from support.models import make_tiny_model


def quantize(*arguments):
    command = [sys.executable, "-m", "launcher", "quantize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_a_folder_is_written_and_what_is_refused_is_one_line(tmp_path):
    source = make_tiny_model(tmp_path / "source")
    done = quantize(source, tmp_path / "out", "--format", "w4a16", "--group", "64")
    assert done.returncode == 0, done.stderr
    assert "14 layers in w4a16" in done.stdout
    said = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert said["format"] == "pack-quantized" and said["ignore"] == ["lm_head"]
    again = quantize(source, tmp_path / "out", "--format", "fp8")
    assert again.returncode == 2
    assert again.stderr == f"slipstream quantize: {tmp_path / 'out'}: there is something already\n"


def test_help():
    assert "usage: slipstream quantize" in quantize("--help").stdout
    assert "usage: slipstream quantize" in quantize().stdout
    assert "--format" in quantize("a", "b").stderr
