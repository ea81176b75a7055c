"""Languages of prompts."""

from __future__ import annotations

import pytest

from training.prompts.language import LanguageDetector


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("What is the difference between weather and climate, and why does it matter?", "en"),
        ("Was ist der Unterschied zwischen Wetter und Klima, und warum ist das wichtig?", "de"),
        ("Quelle est la différence entre le temps et le climat, et pourquoi?", "fr"),
        ("天气和气候有什么区别？为什么这很重要？请用简单的语言解释一下这个问题。", "zh"),
    ],
)
def test_running_text_is_told(text, code):
    detected = LanguageDetector().detect(text)
    assert detected is not None
    assert detected[0] == code
    assert detected[1] > 0.9


def test_code_says_nothing_about_language():
    assert LanguageDetector().detect("```python\n" + "for index in range(10): print(index)\n" * 20 + "```") is None
    assert LanguageDetector().detect("2 + 2 = ?") is None
