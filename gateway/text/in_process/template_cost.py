"""Which chat templates are cheap to render whatever plain messages say: found from their text alone.

A template is walked once, as it would run for messages of a role and a content each, without tools or variables. Its
values are bounds (`template_values`): branches that cannot be taken are left out, loops count as often as there can be
messages, and all that is written, copied or looked through adds to a total. What the walk does not know, be it a macro,
a multiplication, or a loop over anything but messages, makes the template one that is not cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jinja2 import TemplateError, nodes

from gateway.text.in_process.template_expressions import Expressions, TooCostlyError
from gateway.text.in_process.template_values import MESSAGE, Kind, either, of
from slipstream.chat_template import parsed

_LONGEST_TEMPLATE: Final = 64 * 1024
_MOST_KEPT: Final = 512 * 1024
"""Characters of all variables together."""


def is_cheap(source: str, special_tokens: Mapping[str, str], *, most_characters: int, most_messages: int) -> bool:
    """Whether rendering so many plain messages, of so many characters together, takes bounded time and memory.

    At most some 20 ms on the slowest of machines, and 4 MiB beside what is written.
    """
    if len(source) > _LONGEST_TEMPLATE:
        return False
    walk = _Walk(special_tokens, most_characters, most_messages)
    try:
        walk.statements(parsed(source).body)
    except (TooCostlyError, TemplateError, RecursionError):
        return False
    return True


class _Walk(Expressions):
    """The statements of a template. A method for each kind; there is none for those that are not cheap."""

    def __init__(self, special_tokens: Mapping[str, str], most_characters: int, most_messages: int) -> None:
        super().__init__(special_tokens, most_characters, most_messages)
        self._kept = 0

    def statements(self, body: Iterable[nodes.Node]) -> None:
        """Walk through statements, in order."""
        for node in body:
            match node:
                case nodes.Output():
                    for part in node.nodes:
                        self.write(part)
                case nodes.If():
                    self._choose(node)
                case nodes.For():
                    self._loop(node)
                case nodes.Assign():
                    self._assign(node)
                case nodes.Break() | nodes.Continue():
                    pass
                case _:
                    raise TooCostlyError

    def _choose(self, node: nodes.If) -> None:
        """Walk through the branches that may be taken. What they assign may then hold, or what held before."""
        before, after = dict(self.scopes[-1]), []
        certain = False
        for branch in (node, *node.elif_):
            truth = self.value(branch.test).truth
            if truth is not False:
                self.statements(branch.body)
                after.append(self.scopes[-1])
                self.scopes[-1] = dict(before)
            if truth:
                certain = True
                break
        if not certain:
            self.statements(node.else_)
            after.append(self.scopes[-1])
        names = {name for scope in after for name in scope}
        outer = {name: self.outer(name) for name in names}
        self.scopes[-1] = {name: either(*(scope.get(name, outer[name]) for scope in after)) for name in names}

    def _loop(self, node: nodes.For) -> None:
        """Walk once through the body, for all its rounds: no variable but a namespace's outlives a round."""
        over = self.value(node.iter)
        if node.recursive or not isinstance(node.target, nodes.Name):
            raise TooCostlyError
        if over.is_one_of(Kind.NONE, Kind.UNDEFINED):
            self.statements(node.else_)
            return
        if not over.is_one_of(Kind.MESSAGES, Kind.NONE, Kind.UNDEFINED):
            raise TooCostlyError
        with self.repeated(self.most_messages):
            self.scopes.append({node.target.name: MESSAGE, "loop": of(Kind.LOOP, truth=True)})
            if node.test is None or self.value(node.test).truth is not False:
                self.statements(node.body)
            self.scopes.pop()
        self.statements(node.else_)

    def _assign(self, node: nodes.Assign) -> None:
        value = self.value(node.node)
        match node.target:
            case nodes.Name(name=name) if not value.may_be(Kind.LOOP):
                self._kept += value.size
                self.scopes[-1][name] = value
            case nodes.NSRef():
                # A round may read what the last one left: so nothing grows here, see `Expressions.of_namespace`.
                if not value.is_one_of(*self.of_namespace.kinds) or value.size > self.of_namespace.size:
                    raise TooCostlyError
            case _:
                raise TooCostlyError
        if self._kept > _MOST_KEPT:
            raise TooCostlyError
