"""The wire form of grammars."""

from __future__ import annotations

from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from slipstream.v1 import sampling_pb2


def decode_grammar(message: sampling_pb2.Grammar) -> Grammar:
    """Return the grammar of a message, unchecked."""
    kind = message.WhichOneof("kind")
    return Grammar(
        json_schema=message.json_schema if kind == "json_schema" else None,
        json_object=kind == "json_object" and message.json_object,
        regex=message.regex if kind == "regex" else None,
        lark=message.lark if kind == "lark" else None,
        choice=tuple(message.choice.texts) if kind == "choice" else None,
        structural_tag=_decode_tags(message.structural_tag) if kind == "structural_tag" else None,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
        coerce_one_of=message.coerce_one_of,
        starts_after=tuple(message.starts_after),
    )


def encode_grammar(grammar: Grammar) -> sampling_pb2.Grammar:
    """Return the message of a grammar."""
    return sampling_pb2.Grammar(
        json_schema=grammar.json_schema,
        json_object=grammar.json_object or None,
        regex=grammar.regex,
        lark=grammar.lark,
        choice=None if grammar.choice is None else sampling_pb2.Choices(texts=grammar.choice),
        structural_tag=None if grammar.structural_tag is None else _encode_tags(grammar.structural_tag),
        whitespace_pattern=grammar.whitespace_pattern,
        coerce_one_of=grammar.coerce_one_of,
        starts_after=grammar.starts_after,
    )


def _decode_tags(message: sampling_pb2.StructuralTag) -> StructuralTag:
    tags = []
    for tag in message.tags:
        content = tag.WhichOneof("content")
        tags.append(
            TagRule(
                trigger=tag.trigger,
                begin=tag.begin,
                end=tag.end,
                json_schema=tag.json_schema if content == "json_schema" else None,
                lark=tag.lark if content == "lark" else None,
                regex=tag.regex if content == "regex" else None,
            )
        )
    return StructuralTag(
        tags=tuple(tags),
        at_least_one=message.at_least_one,
        no_free_text=message.no_free_text,
        stop_after_first=message.stop_after_first,
    )


def _encode_tags(tags: StructuralTag) -> sampling_pb2.StructuralTag:
    return sampling_pb2.StructuralTag(
        tags=[
            sampling_pb2.TagRule(
                trigger=tag.trigger,
                begin=tag.begin,
                end=tag.end,
                json_schema=tag.json_schema,
                lark=tag.lark,
                regex=tag.regex,
            )
            for tag in tags.tags
        ],
        at_least_one=tags.at_least_one,
        no_free_text=tags.no_free_text,
        stop_after_first=tags.stop_after_first,
    )
