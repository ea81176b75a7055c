"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.fields import Body, TemplateFields
from gateway.openai.messages import ChatMessage
from gateway.openai.schema import TokenId, ToolFields


class TokenizeRequest(TemplateFields, ToolFields):
    """Body of POST /tokenize: a text, or a conversation that the chat template writes."""

    model: str | None = Field(None, description="Default: the model that is served.")
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add its own, such as BOS. Default: for a prompt, not for messages."
    )
    add_generation_prompt: bool | None = Field(
        None, description="End messages where the assistant's turn begins. Default: true."
    )
    return_token_strs: bool | None = Field(None, description="Return the tokens' names in the vocabulary too.")

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "either prompt or messages must be given")
        return self


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    model: str | None = Field(None, description="Default: the model that is served.")
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
