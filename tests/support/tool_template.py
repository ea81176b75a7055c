"""A chat template in the style of Qwen 3, with tools and reasoning; and a verify service that answers as told."""

from __future__ import annotations

from pathlib import Path

from gateway.tokens.tokenizer import Tokenizer
from support.fake_verify import EOS_ID, FakeVerify

TEMPLATE = """{{ bos_token }}
{%- if tools %}{{ '<|system|>You may call' }}{% for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor %}
{{- eos_token }}{% endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role: ' ~ message.role) }}
    {%- endif %}
    {{- '<|' ~ ('user' if message.role == 'tool' else message.role) ~ '|>' }}
    {%- if message.reasoning_content %}{{ '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}{% endif %}
    {%- if message.role == 'tool' %}{{ '<tool_response>' ~ message.content ~ '</tool_response>' }}
    {%- else %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
        {{- call.function.arguments | tojson ~ '}\\n</tool_call>' }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class ScriptedModel:
    """What the model says next, and what it was asked."""

    def __init__(self, verify: FakeVerify, folder: Path) -> None:
        self._verify = verify
        self._tokenizer = Tokenizer(folder)

    def says(self, text: str, *, tokens_per_step: int = 3) -> None:
        """Answer with `text` from now on; the record of prompts begins anew."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        self._verify.reset(tokens=[*ids, EOS_ID], tokens_per_step=tokens_per_step)

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self._tokenizer.decode(self._verify.seen.submits[-1].prompt_token_ids, skip_special_tokens=False)
