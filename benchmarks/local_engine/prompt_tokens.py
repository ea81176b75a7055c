"""Token ids of prompts: of conversations under a model's chat template, or random ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.lib.prompts import Prompt


def chat_token_ids(folder: Path, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Ids of each conversation under the folder's chat template, with the turn of the answer begun."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(config["chat_template"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [
        template.render(
            messages=[{"role": role, "content": content} for role, content in prompt.messages],
            bos_token=config["bos_token"],
            eos_token=config["eos_token"],
            add_generation_prompt=True,
        )
        for prompt in prompts
    ]
    return [tuple(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def random_token_ids(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of the given lengths, no two of which begin alike."""
    pick = Random(seed)
    return [tuple(pick.randrange(vocab_size) for _ in range(length)) for length in lengths]
