"""Placeholders and masked samples."""

from __future__ import annotations

from training.prompts.pii import Finding
from training.prompts.records import Turn
from training.prompts.redact import masked, samples, scrub

TEXT = "Ask ann@example.com or the key sk-12345678 now"
FINDINGS = [Finding(4, 19, "email"), Finding(31, 42, "secret")]


def test_findings_become_placeholders_and_the_rest_stays():
    assert scrub(Turn("user", TEXT), FINDINGS) == Turn("user", "Ask [EMAIL] or the key [SECRET] now")


def test_samples_show_shapes_and_no_neighbours():
    shown = samples(TEXT, FINDINGS)
    assert [kind for kind, _ in shown] == ["email", "secret"]
    assert shown[0][1] == "Ask »an*@*******.***« or the key"
    assert shown[1][1] == "Ask [EMAIL] or the key »**-********« now"
    assert not any("12345678" in sample or "example" in sample for _, sample in shown)


def test_of_short_things_and_secrets_nothing_is_shown():
    assert masked("1234567", "phone") == "*******"
    assert masked("hunter22x!hunter22x!", "secret") == "*********!*********!"
    assert masked("first line\nsecond", "address") == "fi*** ****"
