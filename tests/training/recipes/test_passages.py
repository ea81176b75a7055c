"""Long prompts of others' passages."""

from __future__ import annotations

from training.recipes.passages import CHARACTERS, Asked, long_prompts, passages_in


def record(text, category="", system=""):
    turns = [{"role": "system", "content": system}] if system else []
    return {"messages": [*turns, {"role": "user", "content": text}], "category": category}


def test_a_passage_is_what_stands_under_a_short_question():
    passage = "A rider.\n\nHe rode. " * 40
    records = [
        record(f"Who rode?\n\n{passage}", "dolly-15k", system="Be brief."),
        record(f"Who rode?\n\n{passage}", "mbpp"),
        record("Who rode?\n\nA rider.", "dolly-15k"),
        record(f"{'Who rode? ' * 40}\n\n{passage}", "dolly-15k"),
        record(passage.replace("\n\n", " "), "dolly-15k"),
    ]
    assert passages_in(records, ["dolly"]) == [Asked("Who rode?", " ".join(passage.split()))]
    assert len(passages_in(records)) == 2


def test_long_prompts_are_summed_up_or_asked_about():
    asked = [Asked(f"Who is {name}?", f"{name} rode on. " * 50) for name in ("Ann", "Bob", "Cid")]
    made = list(long_prompts(asked, 40))
    assert made == list(long_prompts(asked, 40))
    texts = [each["messages"][0]["content"] for each in made]
    assert all(CHARACTERS[0] <= len(text) <= CHARACTERS[1] + 20 for text in texts)
    assert all(text.startswith("Summarize: ") for text in texts[1::2])
    for text in texts[::2]:
        passages, _, question = text.rpartition("\n")
        name = question.removeprefix("Who is ").removesuffix("?")
        assert f"{name} rode on." in passages
    assert any(sum(name in text for name in ("Ann", "Bob", "Cid")) > 1 for text in texts[::2])
    assert list(long_prompts([], 40)) == []
