"""Templates that are cheap whatever plain messages say, and those that are not."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.in_process.small_requests import MOST_BYTES, MOST_MESSAGES
from gateway.text.in_process.template_cost import is_cheap
from slipstream.chat_template import ChatTemplate
from slipstream.rpc.errors import InvalidArgumentError
from support.chat_templates import CHATML, LLAMA_2, LLAMA_3, QWEN_2, QWEN_3
from support.least_seconds import least_seconds
from support.models import CHAT_TEMPLATE

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DEMO = Path("demo_models/slipstream-demo/tokenizer_config.json")
DEAR = [
    "{{ messages[0].content * 100 }}",
    "{{ 'a' * 2*10**9 }}",
    "{{ 2**9**9 }}",
    "{% set x = 'aa' %}" + "{% set x = x ~ x %}" * 30 + "{{ x }}",
    "{% set n = namespace(s='a') %}{% for m in messages %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s='a') %}{% for m in messages %}{% set n.s = n.s + m.content %}{% endfor %}{{ n.s }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{{ 1 }}{% endfor %}{% endfor %}{% endfor %}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% for w in messages[0].content.split(' ') %}{{ messages[0].content }}{% endfor %}",
    "{{ '%99999999d' % 1 }}",
    "{{ messages[0].content % 1 }}",
    "{{ messages }}",
    "{{ messages[0] ~ '' }}",
    "{{ messages[0].items }}",
    "{{ messages[0].content.center(10**9) }}",
    "{{ messages[0].content.format('x') }}",
    "{{ messages[0].content.strip(messages[0].role) }}",
    "{{ messages[0].content.replace('', messages[0].content) }}",
    "{{ messages[0].content | replace('a', messages[0].content) }}",
    "{{ messages[0].content | indent(99999) }}",
    "{{ messages[0].content | wordwrap(1) }}",
    "{{ messages | tojson(indent=999999) }}",
    "{{ strftime_now('%99999999Y') }}",
    "{{ [messages] * 9 }}",
    "{% set m = messages + messages %}{{ m | length }}",
    "{{ lipsum(n=100000) }}",
    "{{ cycler }}",
    "{% include 'x' %}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "{% set x %}{{ messages[0].content }}{% endset %}{{ x ~ x }}",
    "{% if messages %}{% set range = 1 %}{% endif %}{% for i in range(10**9) %}{% endfor %}",
    "{{",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "x" * 100_000,
]


def cheap(template: str) -> bool:
    return is_cheap(template, TOKENS, most_characters=MOST_BYTES, most_messages=MOST_MESSAGES)


@pytest.mark.parametrize("template", [CHATML, LLAMA_2, LLAMA_3, QWEN_2, QWEN_3, CHAT_TEMPLATE, ""])
def test_templates_of_well_known_models_are_cheap(template: str) -> None:
    assert cheap(template)


def test_the_template_of_the_demo_model_is_cheap() -> None:
    assert cheap(json.loads(DEMO.read_text("utf-8"))["chat_template"])


@pytest.mark.parametrize("template", DEAR, ids=range(len(DEAR)))
def test_what_has_no_bound_is_not_cheap(template: str) -> None:
    assert not cheap(template)


def test_branches_that_plain_messages_do_not_take_cost_nothing() -> None:
    dear = "{{ messages[0].content * 100 }}"
    for condition in ("tools", "messages[0].tool_calls", "documents is not none", "x is defined"):
        assert cheap(f"{{% if {condition} %}}{dear}{{% endif %}}"), condition
        assert not cheap(f"{{% if not ({condition}) %}}{dear}{{% endif %}}"), condition
    assert not cheap(f"{{% if add_generation_prompt %}}{dear}{{% endif %}}")


LEAVES = st.sampled_from(
    [
        "messages[0].content", "m.content", "m['role']", "m.get('content')", "x", "n.s", "loop.index0", "'ab'",
        "bos_token", "messages", "messages[1:]", "m", "tools", "m.content.split('a')", "1", "loop.previtem.content",
        "(messages | length)",
    ]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["~", "+", "-", "*", "%", "in", "==", "or", "and"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(
            inner,
            st.sampled_from(
                [".strip()", ".upper()", " | trim", " | tojson", " | replace('a', 'aaaaaaaaaaaaaaaa')", "[0]", "[::-1]",
                 ".split('\\n')", ".split(' ')[-1]", " | join('----------------')", ".endswith('b')", " | length",
                 " | first"]
            ),
        ).map(lambda parts: f"({parts[0]}{parts[1]})"),
    ),
    max_leaves=6,
)  # fmt: skip
STATEMENTS = st.recursive(
    EXPRESSIONS.map(lambda value: f"{{{{ {value} }}}}"),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["x", "n.s"]), EXPRESSIONS).map(lambda to: f"{{% set {to[0]} = {to[1]} %}}"),
        st.lists(inner, min_size=1, max_size=6).map(
            lambda body: f"{{% for m in messages %}}{''.join(body)}{{% endfor %}}"
        ),
        st.tuples(EXPRESSIONS, inner, inner).map(
            lambda parts: f"{{% if {parts[0]} %}}{parts[1]}{{% else %}}{parts[2]}{{% endif %}}"
        ),
        st.lists(inner, min_size=1, max_size=6).map("".join),
    ),
    max_leaves=24,
)
SECONDS = 0.05
CONVERSATIONS = [
    [{"role": "user", "content": unit * (MOST_BYTES // len(unit.encode()))}] for unit in ("a", " ", "\n", "<", "\x00")
] + [
    [{"role": "user", "content": unit * (MOST_BYTES // MOST_MESSAGES // len(unit.encode()))}] * MOST_MESSAGES
    for unit in ("a", "\N{GRINNING FACE}")
]


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(body=STATEMENTS)
def test_what_is_called_cheap_is_cheap(body: str) -> None:
    """Rendered to the end, as nothing cuts it here, however much it writes."""
    source = "{% set n = namespace(s='') %}{% set x = 'a' %}" + body
    if not cheap(source):
        return
    template = ChatTemplate(source, TOKENS)
    for messages in CONVERSATIONS:
        written: list[int] = []

        def render(messages: list[dict[str, str]] = messages, written: list[int] = written) -> None:
            written.clear()
            with suppress(InvalidArgumentError):
                written += map(len, itertools.islice(template.pieces(messages, field="messages"), 1_000_000))

        assert least_seconds(render, SECONDS) < SECONDS, source
        assert sum(written) < 20_000_000
