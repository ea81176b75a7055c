"""The byte-level BPE tokenizer, its special tokens and the chat template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD: Final = "<|pad|>"
BEGIN: Final = "<|begin|>"
END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TURN: Final = "<|end|>"
ROLES: Final = ("system", "user", "assistant")
SPECIAL_TOKENS: Final = (PAD, BEGIN, END_OF_TEXT, END_OF_TURN, *(f"<|{role}|>" for role in ROLES))

CHAT_TEMPLATE: Final = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages and messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] | trim ~ '\\n\\n' }}
    {%- endif %}
    {{- 'You can call these functions:\\n' }}
    {%- for tool in tools %}
        {{- tool['function'] | tojson ~ '\\n' }}
    {%- endfor %}
    {{- 'To call one, answer:\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role: ' ~ message['role']) }}
    {%- endif %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception('a system message must come first') }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {%- if loop.first or loop.previtem['role'] != 'tool' %}
            {{- '<|user|>' }}
        {%- endif %}
        {{- '<tool_response>\\n' ~ (message['content'] or '') | trim ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem['role'] != 'tool' %}
            {{- '<|end|>' }}
        {%- endif %}
    {%- elif message['role'] != 'system' or not tools %}
        {{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') | trim }}
        {%- if message['tool_calls'] %}
        {%- for call in message['tool_calls'] %}
            {{- '<tool_call>\\n{"name": ' ~ call['function']['name'] | tojson ~ ', "arguments": ' }}
            {%- if call['function']['arguments'] is string %}
                {{- call['function']['arguments'] }}
            {%- else %}
                {{- call['function']['arguments'] | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {%- endif %}
        {{- '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""
"""Tools stand in the system turn, results of calls in the user's, so that no other token is needed than for chats."""

# Words with the space before them, single digits, runs of punctuation, line breaks, runs of spaces.
WORDS: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of exactly `vocab_size` tokens, the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text yields {tokenizer.get_vocab_size()} tokens, not {vocab_size}: give more text")
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, begin)]
    )
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return int(found)


def stop_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that end an answer."""
    return [token_id(tokenizer, END_OF_TURN), token_id(tokenizer, END_OF_TEXT)]


def chat_prompt(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of the rendered chat template with the generation prompt added."""
    text = BEGIN + "".join(f"<|{m['role']}|>{m['content'].strip()}{END_OF_TURN}" for m in messages) + "<|assistant|>"
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BEGIN, "eos_token": END_OF_TURN, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **named,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "special_tokens_map.json").write_text(json.dumps(named, indent=2) + "\n")
