"""What the prompt of a conversation says beside its messages: tools, and variables of the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.limits import shortened
from gateway.openai.schema import ToolFields
from gateway.openai.tools import CustomTool, FunctionTool, tool_for_template
from gateway.text.body import UnsupportedFieldError
from gateway.text.json_values import Values
from slipstream.chat_template import RESERVED, ChatTemplate, Tool
from slipstream.rpc.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Conversation:
    """Tools in the form of chat templates, and the template's variables. `length`: characters of all of it as JSON."""

    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0


def conversation(
    body: ToolFields, tools: Sequence[FunctionTool | CustomTool], values: Values, template: ChatTemplate
) -> Conversation:
    """What `body` says beside its messages, with these tools.

    InvalidArgumentError naming the field for what the template has no use for, or the server alone may set.
    """
    if tools and "tools" not in template.source:
        raise UnsupportedFieldError("tools is not supported by the model's chat template", field="tools")
    written = [values.whole(tool_for_template(tool)) for tool in tools]
    variables = dict(values.whole(body.chat_template_kwargs or {}))
    for name in variables:
        if name in RESERVED:
            place = f"chat_template_kwargs.{shortened(name)}"
            raise InvalidArgumentError(f"{place} is not the caller's to set", field=place)
    variables = _effort(body, template) | variables
    length = len(json.dumps([written, variables], ensure_ascii=False)) if written or variables else 0
    return Conversation(written, variables, length)


def _effort(body: ToolFields, template: ChatTemplate) -> dict[str, Any]:
    """The variables by which a template knows how much the model is to think."""
    effort = body.reasoning_effort
    if effort is None:
        return {}
    known: dict[str, Any] = {"reasoning_effort": effort} if "reasoning_effort" in template.source else {}
    if effort == "none" and "enable_thinking" in template.source:
        known["enable_thinking"] = False
    if not known and effort != "medium":
        raise UnsupportedFieldError(
            'reasoning_effort is supported as "medium" only: the model\'s chat template does not know it',
            field="reasoning_effort",
        )
    return known
