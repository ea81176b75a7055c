"""Which grammars are taken: those that llguidance can enforce whole, within limits."""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits

from slipstream.grammar.deep_stack import run_deep
from slipstream.grammar.grammar import Grammar, StructuralTag
from slipstream.grammar.text import grammar_text
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.rpc.errors import InvalidArgumentError

MAX_BYTES = 1 << 18
"""Of all texts of a grammar together, in UTF-8."""
MAX_CHOICES = 10_000
MAX_TAGS = 256
MAX_STARTS = 16
_MAX_MESSAGE = 300


def parser_limits() -> LLParserLimits:
    """Return the bounds on what a grammar may cost to compile and, for each token, to follow: some 10 ms.

    What an ambiguous grammar costs grows with the square of the items in a row, that is with the output's length.
    """
    return LLParserLimits(
        max_items_in_row=500,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=5_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


Findings = tuple[bool, list[str]]


def check(
    grammar: Grammar,
    tokenizer: GrammarTokenizer | None = None,
    *,
    run: Callable[[Callable[[], Findings]], Findings] = run_deep,
) -> str:
    """Return the grammar as text for llguidance; may take seconds, without the interpreter's lock.

    Raises InvalidArgumentError, whose field is such as `grammar.json_schema`, with the keyword that cannot be enforced,
    the place of an error, or the limit. Without a tokenizer nothing is known of special tokens. A caller whose stack is
    deep as it is has `run` call what it is given.
    """
    field = f"grammar.{grammar.kind}" if grammar.kind else "grammar"
    check_sizes(grammar)
    if grammar.structural_tag is not None:
        _check_tags(grammar.structural_tag)
    if tokenizer is not None:
        _check_starts(grammar, tokenizer.vocab_size)
    tokens = None if tokenizer is None else tokenizer.tokens
    try:
        text = grammar_text(grammar, () if tokenizer is None else tokenizer.specials.keys())
    except ValueError as error:
        raise refusal(field, str(error)) from error
    failed, findings = run(lambda: LLMatcher.validate_grammar_with_warnings(text, tokens, limits=parser_limits()))
    # A warning tells of a keyword that would be passed over.
    for finding in findings:
        if failed or not (grammar.coerce_one_of and finding.startswith("oneOf ")):
            raise refusal(field, finding)
    return text


def refusal(field: str, finding: str) -> InvalidArgumentError:
    """Return the error for a grammar that llguidance refuses."""
    return InvalidArgumentError(f"{field} cannot be enforced: {_shortened(finding)}", field=field)


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."


def check_sizes(grammar: Grammar) -> None:
    """Raise InvalidArgumentError, as `check` does, for a grammar that says too much, or nothing; takes no time."""
    if not grammar.kind:
        raise InvalidArgumentError("grammar says nothing that the output must match", field="grammar")
    size = sum(len(text.encode(errors="replace")) for text in _texts(grammar))
    if size > MAX_BYTES:
        raise InvalidArgumentError(
            f"grammar.{grammar.kind} has {size} bytes, the limit is {MAX_BYTES}", field=f"grammar.{grammar.kind}"
        )
    if grammar.choice is not None and not 1 <= len(grammar.choice) <= MAX_CHOICES:
        raise InvalidArgumentError(
            f"grammar.choice has {len(grammar.choice)} texts, must have from 1 to {MAX_CHOICES}", field="grammar.choice"
        )
    if grammar.choice is not None and "" in grammar.choice:
        raise InvalidArgumentError("grammar.choice has an empty text", field="grammar.choice")
    if len(grammar.starts_after) > MAX_STARTS:
        raise InvalidArgumentError(
            f"grammar.starts_after has {len(grammar.starts_after)} ids, the limit is {MAX_STARTS}",
            field="grammar.starts_after",
        )


def _texts(grammar: Grammar) -> list[str]:
    tags = grammar.structural_tag.tags if grammar.structural_tag is not None else ()
    of_tags = [part for tag in tags for part in (tag.trigger, tag.begin, tag.end, tag.json_schema, tag.lark, tag.regex)]
    single = (grammar.json_schema, grammar.regex, grammar.lark, grammar.whitespace_pattern)
    return [text for text in (*single, *(grammar.choice or ()), *of_tags) if text]


def _check_tags(tags: StructuralTag) -> None:
    field = "grammar.structural_tag.tags"
    if not 1 <= len(tags.tags) <= MAX_TAGS:
        raise InvalidArgumentError(f"{field} has {len(tags.tags)} tags, must have from 1 to {MAX_TAGS}", field=field)
    for number, tag in enumerate(tags.tags):
        named = f"{field}[{number}]"
        if not tag.trigger:
            raise InvalidArgumentError(f"{named}.trigger is empty", field=f"{named}.trigger")
        if not tag.begin.startswith(tag.trigger):
            raise InvalidArgumentError(
                f"{named}.begin is {tag.begin[:80]!r}, must start with the trigger {tag.trigger[:80]!r}",
                field=f"{named}.begin",
            )
        if (tag.json_schema, tag.lark, tag.regex).count(None) != 2:
            raise InvalidArgumentError(f"{named} must have one of json_schema, lark and regex", field=named)


def _check_starts(grammar: Grammar, vocab_size: int) -> None:
    for index, token in enumerate(grammar.starts_after):
        if not 0 <= token < vocab_size:
            raise InvalidArgumentError(
                f"grammar.starts_after[{index}] is {token}, the vocabulary has ids from 0 to {vocab_size - 1}",
                field="grammar.starts_after",
            )
