"""The grammar of a request, as both services know it."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WHITESPACE = r"[ ]|\n[ ]{0,12}"
"""White space that may stand between two tokens of JSON where a request names none: a space, or a new line with the
indentation of usual depths. Weak models never leave unbounded white space."""


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag in free text: `begin`, then what one of `json_schema`, `lark` and `regex` describes, then `end`.

    `begin` starts with `trigger`, which free text does not contain.
    """

    trigger: str
    begin: str
    end: str
    json_schema: str | None = None
    lark: str | None = None
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """Free text with tags, as slipstream/v1/sampling.proto has it."""

    tags: tuple[TagRule, ...]
    at_least_one: bool = False
    no_free_text: bool = False
    stop_after_first: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """One of the first six fields says what the output matches; meaning is that of slipstream/v1/sampling.proto.

    `whitespace_pattern` None is `DEFAULT_WHITESPACE`, "" allows no white space between JSON tokens.
    """

    json_schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    lark: str | None = None
    choice: tuple[str, ...] | None = None
    structural_tag: StructuralTag | None = None
    whitespace_pattern: str | None = None
    coerce_one_of: bool = False
    starts_after: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """Name of the field that says what the output matches; "" where none does."""
        for name in ("json_schema", "regex", "lark", "choice", "structural_tag"):
            if getattr(self, name) is not None:
                return name
        return "json_object" if self.json_object else ""
