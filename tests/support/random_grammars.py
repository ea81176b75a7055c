"""Small grammars in Lark, drawn at random, of letters that JSON escapes and of some that it does not."""

from __future__ import annotations

import json
from random import Random
from typing import Final

LETTERS: Final = 'ab"\\\n\t '
_ATOMS: Final = ("a", "b", '"', r"\\", r"\n", r"\t", " ", r"\x22", r"\u{a}")
_CLASSES: Final = (
    *("[ab]", "[^a]", '[^"]', r"[a\n]", ".", r'["\\]', r"[\s]", "(?s:.)", r"[^\\\n]", r"\w", r"\s", r"\P{L}"),
    *("(?i:[^B])", r"[[a-b]\n&&[^b]]", "(?i)A", "[[:space:]b]"),
)
_TEXTS: Final = ("a", "ab", '"', "\n", "\\", 'a"b', "\n\n")


def random_regex(random: Random, depth: int = 0) -> str:
    """A regular expression."""
    kind = random.randrange(8 if depth < 3 else 2)
    if kind == 0:
        return random.choice(_ATOMS)
    if kind == 1:
        return f"(?:{random.choice(_CLASSES)})"
    if kind < 4:
        return random_regex(random, depth + 1) + random_regex(random, depth + 1)
    if kind == 4:
        return f"(?:{random_regex(random, depth + 1)}|{random_regex(random, depth + 1)})"
    return f"(?:{random_regex(random, depth + 1)}){random.choice(['*', '+', '?', '{1,2}', '{0,3}'])}"


def _terminal(random: Random, names: list[str], depth: int = 0) -> str:
    kind = random.randrange(9)
    if kind <= 3 or depth > 2:
        return f"/{random_regex(random)}/"
    if kind == 4:
        return json.dumps(random.choice(_TEXTS)) + random.choice(["", "i"])
    if kind == 5 and names:
        return random.choice(names)
    if kind == 6:
        return f"({_terminal(random, names, depth + 1)} {random.choice('&|')} {_terminal(random, names, depth + 1)})"
    if kind == 7:
        return f"(/(?s:.)*/ & ~({_terminal(random, names, depth + 1)}))"  # `~` alone matches bytes that are no text
    return f"{_terminal(random, names, depth + 1)} {_terminal(random, names, depth + 1)}"


def _rule(random: Random, atoms: list[str], depth: int = 0) -> str:
    kind = random.randrange(8 if depth < 3 else 2)
    if kind <= 2:
        return random.choice(atoms)
    if kind <= 4:
        return f"{_rule(random, atoms, depth + 1)} {_rule(random, atoms, depth + 1)}"
    if kind == 5:
        return f"({_rule(random, atoms, depth + 1)} | {_rule(random, atoms, depth + 1)})"
    return f"({_rule(random, atoms, depth + 1)}){random.choice(['*', '+', '?', '{1,2}', '~2..3', '{2,}'])}"


def random_grammar(random: Random) -> str:
    """A grammar without white space that is ignored."""
    names: list[str] = []
    lines: list[str] = []
    for letter in "ABC"[: random.randrange(1, 4)]:
        lines.append(f"T{letter}: {_terminal(random, names)}")
        names.append(f"T{letter}")
    rules = [f"r{number}" for number in range(random.randrange(3))]
    atoms = [*names, *rules, json.dumps(random.choice(_TEXTS)), '/[^"]/']
    lines += [f"{rule}: {_rule(random, atoms)} | {_rule(random, names)}" for rule in rules]
    return "\n".join([f"start: {_rule(random, atoms)} {_rule(random, atoms)}", *lines])
