from random import Random

from benchmarks.lib.request_mix import LEAVING, PLAIN, Manners, http_body, questions

PROPOSERS = ("draft-model", "ngram")


def test_the_mix_has_every_kind_and_is_the_same_for_a_seed():
    asked = questions(200, 3)
    assert asked == questions(200, 3)
    assert asked != questions(200, 4)
    assert {each.api for each in asked} == {"grpc", "completions", "chat/completions"}
    assert {each.options["temperature"] > 0 for each in asked} == {True, False}
    for feature in ("logprobs", "top_p", "presence_penalty", "ignore_eos"):
        assert {feature in each.options for each in asked} == {True, False}
    assert {bool(each.stop) for each in asked} == {True, False}
    assert max(each.n for each in asked) > 1
    assert all(each.n == 1 for each in asked if each.api == "grpc")
    assert max(len(each.text) for each in asked) > 20 * min(len(each.text) for each in asked)
    assert [each.number for each in asked] == list(range(200))
    assert max(each.options["max_tokens"] for each in questions(50, 3, longest=9)) == 9


def test_manners_cover_all_readings_and_kinds_of_drafting():
    asked = questions(60, 1)
    manners = Manners(Random(5), PROPOSERS)
    drawn = [(each, manners.next(each)) for each in asked for _ in range(40)]
    assert {manner.reading for _, manner in drawn} == {"steadily", "slowly", "in two parts", "leaves", "cut off"}
    kinds = {None if manner.speculation is None else tuple(sorted(manner.speculation)) for _, manner in drawn}
    assert kinds == {None, ("enabled",), ("enabled", "proposer"), ("max_depth", "max_nodes", "proposer")}
    assert all(manner.streamed for each, manner in drawn if each.api == "grpc")
    assert {manner.reading for each, manner in drawn if each.api == "grpc"} == {"steadily", "slowly", "leaves"}


def test_faithful_clients_read_to_the_end():
    asked = questions(60, 1)
    manners = Manners(Random(5), (), faithful=True)
    drawn = [manners.next(each) for each in asked]
    assert not {manner.reading for manner in drawn} & LEAVING
    assert all("proposer" not in (manner.speculation or {}) for manner in drawn)


def test_a_body_says_what_its_endpoint_takes():
    for each in questions(60, 1):
        if each.api == "grpc":
            continue
        body = http_body(each, PLAIN, "tiny")
        assert body["speculation"] == {"enabled": False}
        assert ("prompt" in body) == (each.api == "completions")
        assert "stream" not in body
        if each.api == "chat/completions" and "logprobs" in each.options:
            assert (body["logprobs"], body["top_logprobs"]) == (True, each.options["logprobs"])
