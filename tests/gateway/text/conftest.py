"""Model folders whose tokenizer or template means harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FolderMaker = Callable[..., Path]


@pytest.fixture
def make_folder(tokenizer_folder: Path, tmp_path: Path) -> FolderMaker:
    """Copies the good folder, with another template or other entries of tokenizer.json."""

    def make(template: str | None = None, **pipeline: Any) -> Path:
        folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, "utf-8")
        if pipeline:
            tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer | pipeline), "utf-8")
        return folder

    return make
