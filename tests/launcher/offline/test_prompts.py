from __future__ import annotations

import numpy as np
import pytest

from launcher.offline.prompts import PlainPrompt, read_conversations, read_prompts

USER = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a text", [PlainPrompt("a text", None)]),
        ([], []),
        ([3, 4], [PlainPrompt(None, [3, 4])]),
        (np.array([3, 4]), [PlainPrompt(None, [3, 4])]),
        ([[3, 4], [5]], [PlainPrompt(None, [3, 4]), PlainPrompt(None, [5])]),
        ({"prompt": "x"}, [PlainPrompt("x", None)]),
        ({"prompt_token_ids": (3,)}, [PlainPrompt(None, [3])]),
        (
            ["x", [3], {"prompt": "y", "prompt_token_ids": [7]}],
            [PlainPrompt("x", None), PlainPrompt(None, [3]), PlainPrompt("y", [7])],
        ),
    ],
)
def test_every_form_of_a_prompt_is_read(given, read):
    assert read_prompts(given) == read


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (5, TypeError, "prompts: int is no prompt and no list; a prompt is a text"),
        (None, TypeError, "prompts: NoneType is no prompt"),
        (b"bytes", TypeError, "prompts: bytes is no prompt"),
        (["x", 5], TypeError, r"prompts\[1\]: int is no prompt"),
        ([[3, "4"]], TypeError, r"prompts\[0\]\[1\]: a token id must be an int, got str"),
        ([True], TypeError, r"prompts\[0\]: bool is no prompt"),
        ([[3, 4.0]], TypeError, "got float"),
        ([-1], ValueError, r"prompts\[0\]: a token id must be from 0 to \d+, got -1"),
        ({"prompt": 5}, TypeError, "prompts: prompt must be a str, got int"),
        ({"prompt_token_ids": 5}, TypeError, "prompts: prompt_token_ids: int is no prompt"),
        ({}, ValueError, "prompts: give prompt or prompt_token_ids"),
        ([{"prompt": "x", "multi_modal_data": {}}], ValueError, r"prompts\[0\]: multi_modal_data: not offered"),
    ],
)
def test_what_is_no_prompt_is_named(given, error, words):
    with pytest.raises(error, match=words):
        read_prompts(given)


def test_conversations_are_read_alone_and_in_lists():
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert read_conversations([USER]) == [[USER]]
    assert read_conversations([[USER], [USER, parts]]) == [[USER], [USER, {"role": "user", "content": "a\nb"}]]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("Hello", TypeError, "messages must be a list of messages or of such lists, got str"),
        (USER, TypeError, "messages must be a list"),
        (5, TypeError, "messages: int"),
        (["Hello"], TypeError, r"messages\[0\]: str"),
        ([[USER, "Hello"]], TypeError, r"messages\[0\]\[1\]: a message must be a mapping"),
        ([USER, [USER]], TypeError, r"messages\[1\]: a message must be a mapping"),
        ([{"content": "x"}], TypeError, r"messages\[0\]: role must be a str"),
        ([{"role": "user", "content": 5}], TypeError, r"messages\[0\]: content must be a str or a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], ValueError, r"messages\[0\]: content\[0\] must be"),
        ([USER | {"tool_calls": []}], ValueError, r"messages\[0\]: tool_calls: not offered"),
    ],
)
def test_what_is_no_conversation_is_named(given, error, words):
    with pytest.raises(error, match=words):
        read_conversations(given)
