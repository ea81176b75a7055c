from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from slipstream.chat_template import ChatTemplate
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n{{ 1 }} <b>&</b>"}]

RICH = """\
{%- for message in messages %}
    {%- if loop.index0 > 5 %}{% break %}{% endif %}
    {%- set ns = namespace(x=message.content | trim) %}
    {{- bos_token if loop.first }}
    {% if message.role == 'user' %}
U {{ ns.x }} {{ {'a': 'ü<'} | tojson }}
    {% else %}
    {% generation %}S {{ message['content'] }}{% endgeneration %}
    {% endif %}
{%- endfor %}
{% if add_generation_prompt %}A:{% endif %}
"""


@pytest.mark.parametrize("template", [None, RICH])
def test_renders_as_transformers_does(demo_model: Path, template: str | None) -> None:
    reference = PreTrainedTokenizerFast.from_pretrained(demo_model)
    rendered = reference.apply_chat_template(
        MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    if template is None:
        ours = ChatTemplate.from_folder(demo_model)
    else:
        ours = ChatTemplate(template, {"bos_token": "<|begin|>"})
    assert ours.render(MESSAGES) == rendered


def test_a_file_of_its_own_wins_over_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}file", "utf-8")
    config = {"chat_template": "config", "eos_token": {"content": "</s>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    assert ChatTemplate.from_folder(tmp_path).render(MESSAGES) == "</s>file"


def test_a_file_that_is_named_wins_over_the_models_own(tmp_path: Path) -> None:
    named = tmp_path / "named.jinja"
    named.write_text("{{ eos_token }}named", "utf-8")
    config = {"chat_template": "config", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "chat_template.jinja").write_text("file", "utf-8")
    assert ChatTemplate.from_folder(tmp_path, named).render(MESSAGES) == "</s>named"
    named.write_text("{% if %}", "utf-8")
    with pytest.raises(FailedPreconditionError, match=f"{named}: the chat template does not compile"):
        ChatTemplate.from_folder(tmp_path, named)


def test_the_default_one_of_several_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}), "utf-8")
    assert ChatTemplate.from_folder(tmp_path).render(MESSAGES) == "plain"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content.missing }}", "the chat template"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_what_the_template_refuses_or_must_not_do_is_an_error_of_the_request(template: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        ChatTemplate(template, {}).render(MESSAGES)
    assert caught.value.field == "messages"


def test_a_model_without_template_takes_no_chat(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no chat template"):
        ChatTemplate.from_folder(tmp_path).render(MESSAGES)


def test_templates_know_the_date() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render(MESSAGES)) == 10
