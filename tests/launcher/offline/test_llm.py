"""Offline generation on real services."""

from __future__ import annotations

import os
from random import Random

import httpx
import pytest
import torch
import transformers
from tqdm import tqdm

from slipstream import LLM, LoRARequest, SamplingParams
from slipstream.rpc.errors import InvalidArgumentError
from support.lora_adapters import write_adapter

PROMPTS = ["The harbour was quiet", "def add(a, b):", "Water boils"]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model, tiny_draft_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("defaults")
    defaults = '{"temperature": 0, "repetition_penalty": 1.5, "max_new_tokens": 5}'
    (folder / "generation_config.json").write_text(defaults)
    config = {"method": "draft-model", "model": str(tiny_draft_model), "num_speculative_tokens": 3}
    loras = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    with LLM(tiny_model, speculative_config=config, generation_config=folder, **loras) as llm:
        yield llm


def test_outputs_come_in_the_order_of_the_prompts(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        assert [choice.index for choice in output.outputs] == [0]
        assert len(output.outputs[0].token_ids) == 12
        assert output.outputs[0].finish_reason == "length"
    again = llm.generate([output.prompt_token_ids for output in outputs], GREEDY, use_tqdm=False)
    assert [each.outputs[0].token_ids for each in again] == [each.outputs[0].token_ids for each in outputs]


def test_one_prompt_may_stand_alone(llm):
    (from_text,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    ids = list(from_text.prompt_token_ids)
    (from_ids,) = llm.generate(ids, sampling_params=GREEDY, use_tqdm=False)
    assert from_ids.outputs[0].text == from_text.outputs[0].text
    mappings = [{"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}]
    for output in llm.generate(mappings, sampling_params=GREEDY, use_tqdm=False, lora_request=None):
        assert output.prompt_token_ids == from_text.prompt_token_ids
        assert output.outputs[0].token_ids == from_text.outputs[0].token_ids


def test_prompts_have_adapters_which_come_and_go(llm, tiny_model, tmp_path):
    """Three adapters in turn where there is room for two: answers are those of each, whatever else is loaded."""
    red, blue, green = (
        LoRARequest(name, 1, str(write_adapter(tmp_path / name, tiny_model, seed=seed, strength=0.7)))
        for seed, name in enumerate(("red", "blue", "green"))
    )
    prompts = [PROMPTS[0]] * 3
    mixed = llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=[red, None, blue])
    assert [output.lora_request for output in mixed] == [red, None, blue]
    said = [output.outputs[0].token_ids for output in mixed]
    assert len(set(said)) == 3
    for adapter, expected in ((None, said[1]), (green, None), (red, said[0]), (blue, said[2])):
        (output,) = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False, lora_request=adapter)
        assert expected in (None, output.outputs[0].token_ids)
    (chat,) = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, use_tqdm=False, lora_request=red)
    assert chat.lora_request == red
    with pytest.raises(ValueError, match="names 3 adapters, max_loras of this LLM is 2"):
        llm.generate(prompts, GREEDY, lora_request=[red, green, blue])
    with pytest.raises(InvalidArgumentError, match="path"):
        llm.generate(PROMPTS[0], GREEDY, lora_request=LoRARequest("none", 1, str(tmp_path / "nowhere")))


def test_choices_share_a_seed_and_differ(llm):
    params = SamplingParams(n=3, seed=11, max_tokens=16, temperature=1.0, ignore_eos=True, logprobs=2)
    (output,) = llm.generate(PROMPTS[:1], params, use_tqdm=False)
    assert len({choice.token_ids for choice in output.outputs}) == 3
    assert {choice.seed for choice in output.outputs} == {11}
    assert all(len(choice.logprobs) == 16 for choice in output.outputs)
    (again,) = llm.generate(PROMPTS[:1], params, use_tqdm=False)
    assert [choice.token_ids for choice in again.outputs] == [choice.token_ids for choice in output.outputs]


def test_each_prompt_may_have_its_own_parameters(llm):
    params = [SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True) for count in (1, 2, 3)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    with pytest.raises(ValueError, match="3 prompts, but 2"):
        llm.generate(PROMPTS, params[:2], use_tqdm=False)


def test_a_conversation_is_written_under_the_template(llm):
    conversation = [{"role": "user", "content": "Hello"}]
    (alone,) = llm.chat(messages=conversation, sampling_params=GREEDY, use_tqdm=False, add_generation_prompt=True)
    (listed,) = llm.chat([conversation], GREEDY, use_tqdm=False)
    assert alone.prompt_token_ids == listed.prompt_token_ids
    assert alone.outputs[0].token_ids == listed.outputs[0].token_ids


def test_bad_parameters_are_errors_that_name_the_field(llm):
    with pytest.raises(InvalidArgumentError) as caught:
        llm.generate(PROMPTS, SamplingParams(temperature=9.0), use_tqdm=False)
    assert "temperature" in caught.value.field


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda llm: llm.generate(5), TypeError, "prompts: int is no prompt"),
        (lambda llm: llm.generate("x", {"temperature": 0}), TypeError, "sampling_params must be SamplingParams"),
        (lambda llm: llm.generate("x", [0.5]), TypeError, r"sampling_params\[0\] must be SamplingParams, got float"),
        (lambda llm: llm.generate("x", use_tqdm="no"), TypeError, "use_tqdm must be bool, got str"),
        (
            lambda llm: llm.generate("x", lora_request="a"),
            TypeError,
            "lora_request must be a LoRARequest with a lora_n",
        ),
        (
            lambda llm: llm.generate("x", sampling_parms=GREEDY),
            TypeError,
            "generate takes no argument 'sampling_parms'",
        ),
        (lambda llm: llm.chat("Hello"), TypeError, "messages must be a list"),
        (lambda llm: llm.chat([], tools=[{}]), ValueError, "chat: tools=.* is not offered"),
    ],
)
def test_wrong_calls_say_so(llm, call, error, words):
    with pytest.raises(error, match=words):
        call(llm)


def test_progress_is_shown_and_closing_stops_the_services(tiny_model, capsys):
    llm = LLM(model=str(tiny_model), seed=3, max_model_len=40, max_num_seqs=2)
    process_ids = [process.pid for process in llm._cluster.processes.values()]
    llm.generate(PROMPTS, GREEDY)
    assert "3/3" in capsys.readouterr().err
    bars = []
    params = SamplingParams(max_tokens=1)
    (output,) = llm.generate("a", params, use_tqdm=lambda **options: bars.append(tqdm(**options)) or bars[0])
    assert bars[0].n == 1
    # The three prompts before it took a seed each.
    assert output.outputs[0].seed == [random.getrandbits(64) for random in [Random(3)] for _ in range(4)][3]
    with pytest.raises(InvalidArgumentError, match="40"):
        llm.generate([list(range(2, 60))], GREEDY, use_tqdm=False)
    llm.close()
    llm.close()
    for process_id in process_ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate(PROMPTS, GREEDY)


def test_arguments_are_refused_before_anything_starts(tiny_model):
    with pytest.raises(TypeError, match="model must be the folder of a checkpoint, got int"):
        LLM(5)
    with pytest.raises(TypeError, match="seed must be int or None, got str"):
        LLM(tiny_model, seed="7")
    with pytest.raises(ValueError, match="quantization='awq' is not offered"):
        LLM(tiny_model, quantization="awq")


@pytest.mark.parametrize(
    ("config", "reason"), [({"metod": "ngram"}, "unknown key 'metod'"), ({"max_nodes": 4}, "a method, or a model")]
)
def test_wrong_configurations_say_so(tiny_model, config, reason):
    with pytest.raises(ValueError, match=reason):
        LLM(tiny_model, speculative_config=config)


def test_without_parameters_the_models_own_defaults_are_used(llm, tiny_model):
    wanted = SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=5)
    assert llm.get_default_sampling_params() == wanted
    (output,) = llm.generate(PROMPTS[0], use_tqdm=False)
    (expected,) = llm.generate(PROMPTS[0], wanted, use_tqdm=False)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    with pytest.raises(ValueError, match="generation_config: 'nowhere' is neither"):
        LLM(tiny_model, generation_config="nowhere")


def test_prompt_logprobs_are_those_of_transformers_and_of_the_http_api(llm, tiny_model):
    """Of prompts that share a beginning, together and alone; each is computed whole, cached or not."""
    prompts = [[7 + place * place % 400 for place in range(length)] for length in (90, 41, 90, 2)]
    scoring = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=1)
    outputs = llm.generate(prompts, scoring, use_tqdm=False)
    assert {(each.outputs[0].token_ids, each.outputs[0].finish_reason) for each in outputs} == {((), "length")}
    both = SamplingParams(n=2, max_tokens=3, temperature=0.0, prompt_logprobs=1, ignore_eos=True)
    for prompt, output in zip(prompts, outputs, strict=True):
        (alone,) = llm.generate(prompt, both, use_tqdm=False)
        assert alone.prompt_logprobs == output.prompt_logprobs
        assert alone.outputs[0].usage.cached_tokens == 0
    body = {"model": tiny_model.name, "prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    answer = httpx.post(f"{llm._cluster.http_url}/v1/completions", json=body, timeout=60).json()
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for prompt, output, choice in zip(prompts, outputs, answer["choices"], strict=True):
        told = [entry.chosen.logprob for entry in output.prompt_logprobs[1:]]
        assert output.prompt_logprobs[0] is None
        assert choice["logprobs"]["token_logprobs"][:-1] == [None, *told]
        best = [entry.top[0].logprob for entry in output.prompt_logprobs[1:]]
        assert [max(each.values()) for each in choice["logprobs"]["top_logprobs"][1:-1]] == best
        with torch.no_grad():
            logprobs = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
        torch.testing.assert_close(
            torch.tensor(told), logprobs[torch.arange(len(prompt) - 1), prompt[1:]], atol=0.05, rtol=0.0
        )
