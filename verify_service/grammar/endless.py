"""Grammars that may force a text without an end."""

from __future__ import annotations

from slipstream.grammar.grammar import Grammar


def may_force_without_end(grammar: Grammar) -> bool:
    """Whether a grammar could come to a place from where one byte must follow the other for ever.

    A lexeme is as long as it can be. One such as `a?b*` in front of a `b` takes that, too, and any that follows: the
    grammar goes on with nothing else, and never ends. Values of JSON end by a letter that they do not have, and one
    lexeme alone, which an expression or a choice is, may end wherever it is complete.
    """
    if grammar.lark is not None:
        return True
    if grammar.structural_tag is not None:
        return any(tag.json_schema is None for tag in grammar.structural_tag.tags) or bool(grammar.whitespace_pattern)
    return bool(grammar.whitespace_pattern)
