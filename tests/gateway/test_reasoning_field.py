"""`--reasoning-field` says under which names reasoning is answered, in whole answers and in streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.tool_template import TEMPLATE, ScriptedModel

NAMES = {"reasoning", "reasoning_content"}
ASK: list[Any] = [{"role": "user", "content": "How is Oslo?"}]
THOUGHT = "The weather, then."


def check(client: openai.OpenAI, wanted: set[str]) -> None:
    """Reasoning comes under all of these names, and under no other."""
    create = client.chat.completions.create
    message = create(model="tiny", messages=ASK).choices[0].message.model_dump()
    assert message["content"] == "Fine."
    assert {name: message[name] for name in NAMES & set(message)} == dict.fromkeys(wanted, THOUGHT)
    joined = dict.fromkeys(wanted, "")
    for chunk in create(model="tiny", messages=ASK, stream=True):
        said = chunk.choices[0].delta.model_dump(exclude_unset=True)
        if found := NAMES & set(said):
            assert found == wanted
            joined = {name: text + said[name] for name, text in joined.items()}
    assert joined == dict.fromkeys(wanted, THOUGHT)
    left_out = create(model="tiny", messages=ASK, extra_body={"include_reasoning": False}).choices[0].message
    assert not NAMES & set(left_out.model_dump())


@pytest.fixture
def thinking(model: ScriptedModel) -> None:
    """The model thinks before it answers."""
    model.says(f"<think>\n{THOUGHT}\n</think>\n\nFine.", tokens_per_step=2)


def test_reasoning_is_its_name_where_nothing_is_said(tool_client: openai.OpenAI, thinking: None) -> None:
    check(tool_client, {"reasoning"})


@pytest.mark.parametrize(("setting", "names"), [("reasoning_content", {"reasoning_content"}), ("both", NAMES)])
def test_other_names_are_those_of_the_setting(
    tool_verify: FakeVerify, tokenizer_folder: Path, tmp_path: Path, thinking: None, setting: str, names: set[str]
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(TEMPLATE, "utf-8")
    options = ("--chat-template", str(template), "--reasoning-field", setting)
    with GatewayProcess(tokenizer_folder, tool_verify.address, *options) as process:
        check(openai.OpenAI(base_url=f"{process.http_url}/v1", api_key="none", max_retries=0), names)
