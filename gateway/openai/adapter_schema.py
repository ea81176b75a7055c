"""Bodies of the requests that load and unload LoRA adapters, with vLLM's paths and names."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gateway.openai.fields import Body

LOAD_PATH: Final = "/v1/load_lora_adapter"
UNLOAD_PATH: Final = "/v1/unload_lora_adapter"
MOST_ADAPTER_BYTES: Final = 256 * 1024
"""Of a request's body."""

Name = Annotated[str, Field(min_length=1, max_length=128)]


class LoadAdapterRequest(Body):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: Name = Field(description="What requests name it by, in the place of the model's name.")
    lora_path: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="Its folder, absolute or below the one that the verify services' --lora-dir names."
    )


class UnloadAdapterRequest(Body):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: Name = Field(description="The adapter's name.")
