"""What whoever has just started a server may try it with: something that works for the model served."""

from __future__ import annotations

import json
import os
import shlex

from launcher.services.commands import Layout, reachable
from launcher.services.http_access import http_access
from launcher.supervision.command_name import command_name
from slipstream.model_folder import has_chat_template

_TEMPLATE_FLAG = "--chat-template"


def first_request(layout: Layout, model_name: str) -> str:
    """Commands, a line each: a conversation, or where there is no chat template a text to continue."""
    access, chats = http_access(layout), _has_template(layout)
    body: dict[str, object] = {"model": model_name, "stream": True}
    if chats:
        body["messages"] = [{"role": "user", "content": "Tell me a short story about a lighthouse."}]
        last = f"{command_name()} chat --address {reachable(layout.grpc_address)}{access.chat}"
    else:
        body |= {"prompt": "Once upon a time", "max_tokens": 100}
        last = f"(The model has no chat template: to chat with it, start again with {_TEMPLATE_FLAG} FILE.)"
    path = "chat/completions" if chats else "completions"
    return f"""\
  curl -N{access.curl} {access.base}/v1/{path} -H 'Content-Type: application/json' \\
    -d {shlex.quote(json.dumps(body))}
  {last}"""


def _has_template(layout: Layout) -> bool:
    """Whether the gateway has a chat template: one that it is told of, or the model's own."""
    told = any(argument.startswith(_TEMPLATE_FLAG) for argument in layout.gateway_arguments)
    return told or bool(os.environ.get("SLIPSTREAM_GATEWAY_CHAT_TEMPLATE")) or has_chat_template(layout.model)
