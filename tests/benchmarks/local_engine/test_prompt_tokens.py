from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.lib.prompts import load_prompts
from benchmarks.local_engine.prompt_tokens import chat_token_ids, random_token_ids

PROMPTS = Path(__file__).parents[2] / "data" / "prompts.jsonl"


def test_ids_are_those_of_the_chat_template(demo_model):
    prompts = load_prompts(PROMPTS)
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    expected = [
        tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in prompt.messages],
            add_generation_prompt=True,
            return_dict=False,
        )
        for prompt in prompts
    ]
    assert [list(ids) for ids in chat_token_ids(demo_model, prompts)] == expected


def test_random_prompts_differ_from_the_start_and_repeat_by_seed():
    first = random_token_ids([5, 9, 5], 1000, seed=1)
    assert [len(ids) for ids in first] == [5, 9, 5]
    assert first == random_token_ids([5, 9, 5], 1000, seed=1)
    assert len({ids[:3] for ids in first + random_token_ids([5], 1000, seed=2)}) == 4
