from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.services.commands import Layout
from launcher.supervision.serve import greeting


@pytest.fixture
def layout(tiny_model: Path, tmp_path: Path) -> Layout:
    """Of a model without a chat template."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "tokenizer_config.json").write_text("{}")
    return Layout(folder, (), "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4")


def test_a_model_with_a_template_is_tried_with_a_conversation(layout: Layout, tiny_model: Path) -> None:
    told = greeting(replace(layout, model=tiny_model), "tiny")
    assert "http://127.0.0.1:4/v1/chat/completions" in told and "slipstream chat --address 127.0.0.1:3" in told


def test_a_model_without_one_is_tried_with_a_text(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    told = greeting(layout, "tiny")
    assert "http://127.0.0.1:4/v1/completions" in told and '"prompt": ' in told and "--chat-template FILE" in told
    assert "slipstream chat" not in told
    assert "chat/completions" in greeting(replace(layout, gateway_arguments=("--chat-template", "x")), "tiny")
    monkeypatch.setenv("SLIPSTREAM_GATEWAY_CHAT_TEMPLATE", "x")
    assert "chat/completions" in greeting(layout, "tiny")


def test_the_page_is_named_where_a_browser_finds_it(layout: Layout, tmp_path: Path) -> None:
    assert "page       http://127.0.0.1:4/\n" in greeting(layout, "tiny")
    assert "page  " not in greeting(replace(layout, gateway_arguments=("--no-page",)), "tiny")
    assert "page  " not in greeting(replace(layout, http_address=f"unix:{tmp_path}/http.sock"), "tiny")
