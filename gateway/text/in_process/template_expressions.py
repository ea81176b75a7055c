"""Bounds of a chat template's expressions. See `template_cost`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from jinja2 import nodes

from gateway.text.in_process.template_values import (
    MESSAGES,
    NONE,
    NUMBER,
    UNDEFINED,
    WRITTEN,
    Kind,
    Value,
    either,
    of,
    text,
)

_MOST_STEPS: Final = 20_000
"""A step is a look-up, a call or the like, of at most a microsecond on a slow machine."""
_CHARACTERS_A_STEP: Final = 1000
"""That are copied, compared or looked through."""
_MOST_SIZE: Final = 256 * 1024
"""Characters of any value."""
_NUMBER_SIZE: Final = 64
_LONGEST_ARGUMENT: Final = 16
"""Characters to be stripped, a separator or the like."""
_CASE_FACTOR: Final = 3
"""A character in the other case is three at most."""
_JSON_FACTOR: Final = 12
_JSON_STEPS: Final = 20
"""Writing JSON takes so many times as long as copying."""
_DATE: Final = re.compile(r"(?:%[a-zA-Z]|[^%]){0,64}")
_DATE_SIZE: Final = 2048

_FIELDS: Final = ("role", "content")
_LOOP_NUMBERS: Final = frozenset({"first", "last", "index", "index0", "revindex", "revindex0", "length"})
_LOOP_ITEMS: Final = frozenset({"previtem", "nextitem"})
_CASES: Final = frozenset({"upper", "lower", "capitalize", "title"})
_STRIPS: Final = frozenset({"strip", "lstrip", "rstrip"})
_SPLITS: Final = frozenset({"split", "rsplit"})
_ENDS: Final = frozenset({"startswith", "endswith"})
_FUNCTIONS: Final = frozenset(
    {"range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"}
)
"""Names of the environment."""
_NUMBER_TESTS: Final = frozenset({"boolean", "true", "false", "number", "integer", "float"})


class TooCostlyError(Exception):
    """The template does what has no bound, or none that is known here, or too much."""


class Expressions:
    """Walks expressions. `scopes` are the variables that are set, `of_namespace` what a namespace may hold."""

    def __init__(self, special_tokens: Mapping[str, str], most_characters: int, most_messages: int) -> None:
        self.scopes: list[dict[str, Value]] = [
            {
                **{name: text(len(token)) for name, token in special_tokens.items()},
                "messages": MESSAGES,
                "tools": NONE,
                "documents": NONE,
                "add_generation_prompt": NUMBER,
            },
            {},
        ]
        self.of_namespace = of(*WRITTEN, size=most_characters)
        self.most_messages = most_messages
        self._field = text(most_characters)
        self._steps = 0.0
        self._times = 1
        self._nodes: dict[type[nodes.Node], Callable[..., Value]] = {
            nodes.TemplateData: lambda node: text(len(node.data)),
            nodes.Const: self._constant,
            nodes.Name: self._name,
            nodes.Getattr: lambda node: self._part(self.value(node.node), node.attr),
            nodes.Getitem: self._item,
            nodes.CondExpr: self._conditional,
            nodes.And: lambda node: self._either_side(node, decides=False),
            nodes.Or: lambda node: self._either_side(node, decides=True),
            nodes.Not: self._not,
            nodes.Compare: self._compare,
            nodes.Test: self._test,
            nodes.Filter: self._filter,
            nodes.Concat: lambda node: text(sum(map(self.write, node.nodes))),
            nodes.Add: self._add,
            nodes.Sub: self._calculate,
            nodes.Mod: self._calculate,
            nodes.FloorDiv: self._calculate,
            nodes.Div: self._calculate,
            nodes.Neg: lambda node: self._number(self.value(node.node)),
            nodes.Tuple: self._texts,
            nodes.List: self._texts,
            nodes.Call: self._call,
        }

    def outer(self, name: str) -> Value:
        """What a name stands for outside the innermost scope."""
        return next((scope[name] for scope in reversed(self.scopes[:-1]) if name in scope), UNDEFINED)

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """All within is done so many times."""
        self._times *= times
        yield
        self._times //= times

    def value(self, node: nodes.Node) -> Value:
        """A bound of an expression. TooCostlyError."""
        if (walk := self._nodes.get(type(node))) is None:
            raise TooCostlyError
        found = walk(node)
        self._spend(0)
        if found.size > _MOST_SIZE:
            raise TooCostlyError
        return found

    def write(self, node: nodes.Node) -> int:
        """Characters of an expression that is written into a text."""
        value = self.value(node)
        if not value.is_one_of(*WRITTEN):
            raise TooCostlyError
        size = value.size + _NUMBER_SIZE * (not value.is_one_of(Kind.TEXT))
        self._spend(size)
        return size

    def _spend(self, characters: int) -> None:
        self._steps += self._times * (1 + characters / _CHARACTERS_A_STEP)
        if self._steps > _MOST_STEPS:
            raise TooCostlyError

    def _constant(self, node: nodes.Const) -> Value:
        constant = node.value
        if constant is None:
            return NONE
        if isinstance(constant, str):
            return of(Kind.TEXT, size=len(constant), truth=bool(constant))
        if isinstance(constant, bool) or (isinstance(constant, int | float) and abs(constant) < 2**63):
            return of(Kind.NUMBER, truth=bool(constant))
        raise TooCostlyError

    def _name(self, node: nodes.Name) -> Value:
        """A variable. Functions of the environment are known where they are called alone."""
        found = self.scopes[-1].get(node.name) or self.outer(node.name)
        if found is UNDEFINED and node.name in _FUNCTIONS:
            raise TooCostlyError
        return found

    def _part(self, value: Value, name: object) -> Value:
        """`value.name` or `value['name']`."""
        if value.is_one_of(Kind.NONE, Kind.UNDEFINED):
            return UNDEFINED
        if not isinstance(name, str):
            raise TooCostlyError
        if value.is_one_of(Kind.MESSAGE, Kind.NONE, Kind.UNDEFINED) and not hasattr(dict, name):
            field = self._field if name in _FIELDS else UNDEFINED
            return field if value.is_one_of(Kind.MESSAGE) else either(field, UNDEFINED)
        if value.is_one_of(Kind.LOOP):
            if name in _LOOP_NUMBERS:
                return NUMBER
            if name in _LOOP_ITEMS:
                return of(Kind.MESSAGE, Kind.UNDEFINED)
        if value.is_one_of(Kind.NAMESPACE) and not name.startswith("_"):
            return self.of_namespace
        if value.is_one_of(*WRITTEN) and not any(hasattr(kind, name) for kind in (str, int, float, bool)):
            return UNDEFINED
        raise TooCostlyError

    def _item(self, node: nodes.Getitem) -> Value:
        value = self.value(node.node)
        place = node.arg
        if isinstance(place, nodes.Const) and isinstance(place.value, str):
            return self._part(value, place.value)
        missing = (Kind.NONE, Kind.UNDEFINED)
        if isinstance(place, nodes.Slice):
            for bound in (place.start, place.stop, place.step):
                if bound is not None:
                    self._number(self.value(bound))
            if not value.is_one_of(Kind.MESSAGES, Kind.TEXT, Kind.TEXTS, *missing):
                raise TooCostlyError
            self._spend(value.size + self.most_messages)
            return of(*value.kinds, size=value.size)
        self._number(self.value(place))
        if value.is_one_of(Kind.MESSAGES, *missing):
            return of(Kind.MESSAGE, Kind.UNDEFINED)
        if value.is_one_of(Kind.TEXT, Kind.TEXTS, *missing):
            return of(Kind.TEXT, Kind.UNDEFINED, size=value.size)
        raise TooCostlyError

    def _conditional(self, node: nodes.CondExpr) -> Value:
        truth = self.value(node.test).truth
        found = [self.value(node.expr1)] if truth is not False else []
        if not truth:
            found.append(UNDEFINED if node.expr2 is None else self.value(node.expr2))
        return either(*found)

    def _either_side(self, node: nodes.And | nodes.Or, *, decides: bool) -> Value:
        """`and`, `or`: the left side where its truth is `decides`, else the right one."""
        left = self.value(node.left)
        if left.truth is decides:
            return left
        right = self.value(node.right)
        return right if left.truth is not None else of(*left.kinds, *right.kinds, size=max(left.size, right.size),
                                                       truth=decides if right.truth is decides else None)  # fmt: skip

    def _not(self, node: nodes.Not) -> Value:
        truth = self.value(node.node).truth
        return of(Kind.NUMBER, truth=None if truth is None else not truth)

    def _compare(self, node: nodes.Compare) -> Value:
        values = [self.value(node.expr), *(self.value(operand.expr) for operand in node.ops)]
        self._looked_through(*values)
        return NUMBER

    def _looked_through(self, *values: Value) -> None:
        if any(value.may_be(Kind.LOOP, Kind.NAMESPACE) for value in values):
            raise TooCostlyError
        messages = sum(value.may_be(Kind.MESSAGE, Kind.MESSAGES) for value in values)
        self._spend(sum(value.size for value in values) + messages * (self._field.size + self.most_messages))

    def _test(self, node: nodes.Test) -> Value:
        value, name = self.value(node.node), node.name
        arguments = [self.value(argument) for argument in node.args]
        if node.kwargs or node.dyn_args or node.dyn_kwargs:
            raise TooCostlyError
        known: dict[str, tuple[Kind, ...]] = {
            "undefined": (Kind.UNDEFINED,),
            "none": (Kind.NONE,),
            "string": (Kind.TEXT,),
            "mapping": (Kind.MESSAGE,),
            "sequence": (Kind.TEXT, Kind.TEXTS, Kind.MESSAGE, Kind.MESSAGES, Kind.UNDEFINED),
            "iterable": (Kind.TEXT, Kind.TEXTS, Kind.MESSAGE, Kind.MESSAGES, Kind.UNDEFINED),
        }
        if name == "defined":
            return of(Kind.NUMBER, truth=_opposite(_holds(value, known["undefined"])))
        if name in known:
            return of(Kind.NUMBER, truth=_holds(value, known[name]))
        if name in _NUMBER_TESTS:
            return of(Kind.NUMBER, truth=None if value.may_be(Kind.NUMBER) else False)
        if name in ("equalto", "eq", "==", "ne", "!=", "in"):
            self._looked_through(value, *arguments)
            return NUMBER
        raise TooCostlyError

    def _filter(self, node: nodes.Filter) -> Value:
        if node.node is None or node.dyn_args or node.dyn_kwargs:
            raise TooCostlyError
        value, name = self.value(node.node), node.name
        self._looked_through(value)
        if name == "tojson" and value.is_one_of(*WRITTEN) and all(pair.key == "ensure_ascii" for pair in node.kwargs):
            self._spend(_JSON_STEPS * value.size)
            return text(_JSON_FACTOR * value.size + _NUMBER_SIZE)
        if node.kwargs:
            raise TooCostlyError
        if name in ("length", "count"):
            return NUMBER
        if name in ("first", "last") and value.is_one_of(Kind.MESSAGES):
            return of(Kind.MESSAGE, Kind.UNDEFINED)
        if name in ("default", "d") and node.args:
            return either(value, *map(self.value, node.args))
        if name == "join" and value.is_one_of(Kind.TEXTS) and len(node.args) == 1:
            return text(value.size * (1 + len(_argument(node.args[0]))))
        if value.is_one_of(*WRITTEN):
            written = text(value.size + _NUMBER_SIZE * (not value.is_one_of(Kind.TEXT)))
            if name == "trim":
                return self._method(written, "strip", node.args)
            if name in (*_CASES, "replace"):
                return self._method(written, name, node.args)
            if name == "string" and not node.args:
                return written
        raise TooCostlyError

    def _add(self, node: nodes.Add) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if not (left.is_one_of(*WRITTEN) and right.is_one_of(*WRITTEN)):
            raise TooCostlyError  # lists
        self._spend(left.size + right.size)
        kinds = [kind for kind in (Kind.TEXT, Kind.NUMBER) if left.may_be(kind) and right.may_be(kind)]
        return of(*kinds, size=left.size + right.size if Kind.TEXT in kinds else 0)

    def _calculate(self, node: nodes.BinExpr) -> Value:
        """What makes no number of more than one digit more."""
        for side in (node.left, node.right):
            self._number(self.value(side))
        return NUMBER

    def _number(self, value: Value) -> Value:
        """What is no number raises an error, but a text that is formatted by `%`."""
        if not value.is_one_of(Kind.NUMBER, Kind.NONE, Kind.UNDEFINED):
            raise TooCostlyError
        return NUMBER

    def _texts(self, node: nodes.Tuple | nodes.List) -> Value:
        return of(Kind.TEXTS, size=sum(map(self.write, node.items)))

    def _call(self, node: nodes.Call) -> Value:
        if node.dyn_args or node.dyn_kwargs:
            raise TooCostlyError
        called = node.node
        if isinstance(called, nodes.Getattr) and not node.kwargs:
            return self._method(self.value(called.node), called.attr, node.args)
        if (
            not isinstance(called, nodes.Name)
            or self.outer(called.name) is not UNDEFINED
            or called.name in self.scopes[-1]
        ):
            raise TooCostlyError
        if called.name == "raise_exception" and len(node.args) == 1 and not node.kwargs:
            self.write(node.args[0])
            return UNDEFINED
        if called.name == "strftime_now" and len(node.args) == 1 and not node.kwargs:
            pattern = node.args[0]
            if isinstance(pattern, nodes.Const) and _DATE.fullmatch(str(pattern.value)):
                return text(_DATE_SIZE)
        if called.name == "namespace" and not node.args:
            for pair in node.kwargs:
                value = self.value(pair.value)
                if not value.is_one_of(*self.of_namespace.kinds) or value.size > self.of_namespace.size:
                    raise TooCostlyError
            return of(Kind.NAMESPACE, truth=True)
        raise TooCostlyError

    def _method(self, value: Value, name: str, arguments: list[nodes.Expr]) -> Value:
        if name == "get" and value.is_one_of(Kind.MESSAGE) and len(arguments) in (1, 2):
            default = NONE if len(arguments) == 1 else self.value(arguments[1])
            return self._field if _argument(arguments[0]) in _FIELDS else default
        if not value.is_one_of(*WRITTEN):
            raise TooCostlyError
        self._spend(value.size)
        if name in _STRIPS and len(arguments) <= 1:
            for argument in arguments:
                _argument(argument)
            return text(value.size)
        if name in _CASES and not arguments:
            return text(_CASE_FACTOR * value.size)
        if name in _ENDS and len(arguments) == 1:
            self.write(arguments[0])
            return NUMBER
        if name in _SPLITS and len(arguments) in (1, 2):
            separator = _argument(arguments[0])
            for argument in arguments[1:]:
                self._number(self.value(argument))
            self._spend(_JSON_STEPS * value.size // max(1, len(separator)))  # a string each
            return of(Kind.TEXTS, size=value.size)
        if name == "replace" and len(arguments) == 2 and _argument(arguments[0]):
            self._spend(value.size)
            return text(value.size * (1 + len(_argument(arguments[1]))))
        raise TooCostlyError


def _argument(node: nodes.Expr) -> str:
    """A short constant text."""
    if isinstance(node, nodes.Const) and isinstance(node.value, str) and len(node.value) <= _LONGEST_ARGUMENT:
        return node.value
    raise TooCostlyError


def _holds(value: Value, kinds: tuple[Kind, ...]) -> bool | None:
    """Whether a value is one of these kinds, None if that is not known."""
    if value.is_one_of(*kinds):
        return True
    return None if value.may_be(*kinds) else False


def _opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth
