"""Personal data that is found, and numbers that are none. Every one here is made up or a published sample."""

from __future__ import annotations

from functools import cache

import pytest

from training.prompts.pii import PersonalDataFinder
from training.prompts.settings import PromptSettings


@cache
def finder():
    return PersonalDataFinder(PromptSettings())


def found(text):
    return [(each.kind, text[each.start : each.end]) for each in finder().find(text)]


GITHUB = "ghp_" + "0123456789abcdefghij" + "ABCDEFGHIJ456789"
WEB_TOKEN = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0"
)
KEY_BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mail bob.smith@acme.co.uk today", [("email", "bob.smith@acme.co.uk")]),
        ("call +1 415-555-2671 or 07911 123456", [("phone", "+1 415-555-2671"), ("phone", "07911 123456")]),
        ("card 4111 1111 1111 1111.", [("card", "4111 1111 1111 1111")]),
        ("to DE89 3704 0044 0532 0130 00", [("account", "DE89 3704 0044 0532 0130 00")]),
        ("send 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", [("account", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2")]),
        ("SSN 536-90-4399", [("national_id", "536-90-4399")]),
        ("from 8.8.8.8:53 and 2001:db8::8a2e:370:7334", [("ip", "8.8.8.8"), ("ip", "2001:db8::8a2e:370:7334")]),
        ("at 123 Main Street\nSpringfield, IL 62704 now", [("address", "123 Main Street\nSpringfield, IL 62704")]),
        ("id AKIAIOSFODNN7EXAMPLE", [("secret", "AKIAIOSFODNN7EXAMPLE")]),
        (f"token={GITHUB}", [("secret", GITHUB)]),
        (f"Bearer {WEB_TOKEN} there", [("secret", WEB_TOKEN)]),
        ("password = 'hunter22x!'", [("secret", "hunter22x!")]),
        ("DB_PASSWORD=hunter22x && run", [("secret", "hunter22x")]),
        ("aws_secret_access_key = wJalrX3tnFEMI/K7MDENG/bPxR", [("secret", "wJalrX3tnFEMI/K7MDENG/bPxR")]),
        ("api_key: abcd1234efgh, as it was", [("secret", "abcd1234efgh")]),
        ("https://bob:s3cret@host/x", [("secret", "s3cret")]),
        (f"see\n{KEY_BLOCK}\nthere", [("secret", KEY_BLOCK)]),
    ],
)
def test_personal_data_is_found_whole(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "card 4111 1111 1111 1112 fails its checksum, as does GB82WEST12345698765433",
        "pi is 3.14159265358979, twice -0.9345678901 and 3.1415926535897932",
        "order 1642017 of 2023-10-12 12:30:45, 1,234,567 items",
        "std::vector, a::b, ::1, 127.0.0.1, 255.255.255.0 and 1.3.6.1.4.1.9",
        "x@localhost and @decorator",
        "the words 'beauty', 'hat' and \"a somewhat longer sentence in quotes\"",
        "commit 278bd0a41c3f5e0d9f00c5a0dd33a1e6f2b9c4d7",
        "The password: it has 8 letters; password = config.value2, api_key=os.environ['KEY1'], password: z.string()",
    ],
)
def test_numbers_and_code_are_left_alone(text):
    assert found(text) == []


def test_only_the_kinds_asked_for_are_found():
    only = PersonalDataFinder(PromptSettings(kinds=("email",)))
    assert [each.kind for each in only.find("a@example.com 8.8.8.8")] == ["email"]


def test_names_are_found_by_a_pipeline_from_a_folder(tmp_path):
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ada Lovelace"}])
    nlp.to_disk(tmp_path / "pipeline")
    named = PersonalDataFinder(PromptSettings(kinds=("name",), names=str(tmp_path / "pipeline")))
    text = "Did Ada Lovelace write it?"
    assert [(each.kind, text[each.start : each.end]) for each in named.find(text)] == [("name", "Ada Lovelace")]


def test_a_missing_pipeline_is_refused_with_advice():
    with pytest.raises(ValueError, match="spacy download"):
        PersonalDataFinder(PromptSettings(kinds=("name",), names="no_such_pipeline"))
