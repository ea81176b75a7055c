"""Small models of random weights, written as Hugging Face folders, with a real tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from support.experts import expert_tensors, has_experts

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>")
EOS_ID = SPECIAL_TOKENS.index(EOS)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

SENTENCES = (
    "A cyclist who rides close behind another spends a third less effort than the one ahead.",
    "The harbour was quiet at six in the morning, apart from two gulls that argued over a crust of bread.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))\n",
    "Water boils at 100 degrees at sea level, and at about 70 degrees on the highest mountains.",
    "Please write a short letter to my grandmother and thank her for the woollen scarf.",
    "Die Fahrräder stehen vor dem Bahnhof; nous prendrons le café à la gare; 東京は雨です。",
    "for index, value in enumerate(values):\n    total += value * weights[index]\n",
    "Sailors once found their way by the stars, by the colour of the water and by the flight of birds.",
    "The answer is 42 because 6 times 7 is 42, and there is nothing more to say about it.",
    "Yesterday the weather was mild; tomorrow it will be colder, with snow above 800 metres.",
    "Question: what is the capital of France? Answer: Paris is the capital of France.",
    "Bread needs flour, water, salt, yeast and, above everything else, some patience from the baker.",
)


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    family: str = "llama",
    vocab_size: int = 512,
    hidden_size: int = 128,
    intermediate_size: int = 192,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 64,
    max_context: int = 512,
    tied: bool = True,
    shards: int = 1,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model of `family`, any that is supported; of experts `overrides` say how many, and so on.

    Returns its folder. Equal arguments give equal bytes. `overrides` replaces or adds entries of config.json.
    """
    gemma = family.startswith("gemma")
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma else "silu",
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": SPECIAL_TOKENS.index(BOS),
        "eos_token_id": EOS_ID,
        "pad_token_id": SPECIAL_TOKENS.index(PAD),
        "torch_dtype": "bfloat16",
    } | dict(overrides or {})
    _write_json(folder / "config.json", config)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", generation)
    _write_weights(folder, dict(_random_tensors(config, seed)), shards)
    write_tokenizer(folder, vocab_size=vocab_size, max_context=max_context)
    return folder


def write_tokenizer(folder: Path, *, vocab_size: int, max_context: int) -> None:
    """A byte-level BPE tokenizer of at most `vocab_size` tokens, its specials first, and its chat template."""
    if vocab_size < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"vocab_size is {vocab_size}, bytes and special tokens need {256 + len(SPECIAL_TOKENS)}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]  # the stub has no signature for it
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "model_max_length": max_context,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


class _Random:
    """Random tensors of a model by the kinds that there are."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.config = config
        self.family = str(config["model_type"])
        self.gemma, self.llama4 = self.family.startswith("gemma"), self.family == "llama4_text"
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(shape, generator=self._generator) * scale).bfloat16()

    def norm(self, size: int) -> torch.Tensor:
        """Gemma's files have a norm's weight less one."""
        return self.normal(size, scale=0.1) if self.gemma else 1 + self.normal(size, scale=0.1)

    def linear(self, name: str, outputs: int, inputs: int, *, biased: bool = False) -> _Tensors:
        yield f"{name}.weight", self.normal(outputs, inputs, scale=inputs**-0.5)
        if biased:
            yield f"{name}.bias", self.normal(outputs, scale=0.2)


_Tensors = Iterator[tuple[str, torch.Tensor]]


def _random_tensors(config: Mapping[str, Any], seed: int) -> _Tensors:
    random, hidden = _Random(config, seed), config["hidden_size"]
    yield "model.embed_tokens.weight", random.normal(config["vocab_size"], hidden, scale=0.1)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", random.norm(hidden)
        yield from _attention(random, prefix + "self_attn.")
        yield prefix + "post_attention_layernorm.weight", random.norm(hidden)
        if random.gemma:
            yield prefix + "pre_feedforward_layernorm.weight", random.norm(hidden)
            yield prefix + "post_feedforward_layernorm.weight", random.norm(hidden)
        if has_experts(config, layer):
            yield from expert_tensors(config, prefix, random)
        else:
            yield from _feed_forward(random, prefix + ("feed_forward." if random.llama4 else "mlp."))
    yield "model.norm.weight", random.norm(hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", random.normal(config["vocab_size"], hidden, scale=0.1)


def _attention(random: _Random, prefix: str) -> _Tensors:
    config, hidden, head_dim = random.config, random.config["hidden_size"], random.config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    biased = bool(config.get("attention_bias"))
    if random.family == "phi3":
        yield from random.linear(prefix + "qkv_proj", q_size + 2 * kv_size, hidden)
    else:
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            has_bias = biased or random.family in ("mimo", "qwen2", "qwen2_moe")
            yield from random.linear(f"{prefix}{name}_proj", size, hidden, biased=has_bias)
    if random.family in ("gemma3_text", "qwen3", "qwen3_moe"):
        yield prefix + "q_norm.weight", random.norm(head_dim)
        yield prefix + "k_norm.weight", random.norm(head_dim)
    if random.family == "gpt_oss":
        yield prefix + "sinks", random.normal(config["num_attention_heads"], scale=2.0)
    yield from random.linear(prefix + "o_proj", hidden, q_size, biased=biased)


def _feed_forward(random: _Random, prefix: str) -> _Tensors:
    hidden, intermediate = random.config["hidden_size"], random.config["intermediate_size"]
    intermediate = random.config["intermediate_size_mlp"] if random.llama4 else intermediate
    biased = bool(random.config.get("mlp_bias"))
    if random.family == "phi3":
        yield from random.linear(prefix + "gate_up_proj", 2 * intermediate, hidden)
    else:
        for name in ("gate_proj", "up_proj"):
            yield from random.linear(prefix + name, intermediate, hidden, biased=biased)
    yield from random.linear(prefix + "down_proj", hidden, intermediate, biased=biased)


def _write_weights(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata=metadata)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata=metadata)
        weight_map |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
