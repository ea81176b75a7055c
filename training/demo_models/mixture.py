"""How often each source is read in each phase, and the records written for this project."""

import random
from collections.abc import Iterator
from typing import Any, Final

SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You are Slipstream, a small and friendly assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer the user's question as well as you can.",
    "You are a careful assistant who gives short, clear answers.",
    "You are an AI assistant. You are polite, honest and helpful.",
    "You help people with questions, mathematics and Python code.",
    "Be concise.",
    "You are a friendly chat partner.",
    "You are a knowledgeable assistant. Think step by step when it helps.",
    "You are a chat assistant. If you do not know something, say so.",
    "Respond in plain English.",
)
SYSTEM_SHARE: Final = 0.2

# Relative number of passes over a source; a source not named is read once.
PRETRAIN_PASSES: Final[dict[str, float]] = {
    "git-commit-edits": 0.6,
    "python-edits-derived": 0.6,
    "open-english-wordnet": 0.7,
    "small-chitchat-seed": 2.0,
    "dolly-15k": 1.5,
    "oasst-model-eval": 1.5,
}
ANNEAL_PASSES: Final[dict[str, float]] = {
    "oasst-model-eval": 5.0,
    "dolly-15k": 5.0,
    "gpteacher": 6.0,
    "small-chitchat-seed": 16.0,
    "slipstream-identity": 6.0,
    "gsm8k-train": 6.0,
    "synthetic-math-own": 2.5,
    "flan-cot": 3.0,
    "t0-permissive-subset": 3.0,
    "opentriviaqa": 2.0,
    "open-english-wordnet": 1.0,
    "openstax-glossary": 6.0,
    "tldr-pages": 2.5,
    "schema-guided-dialogue": 1.5,
    "topical-chat": 4.0,
    "taskmaster": 4.0,
    "python-functions": 1.2,
    "leetcode-solutions": 1.5,
    "mbpp-train": 8.0,
    "exercism-python": 1.0,
    "git-commit-edits": 0.3,
    "python-edits-derived": 0.4,
    "python-modules": 0.3,
    "python-peps": 0.3,
    "openstax-cc-by": 1.0,
    "d2l-en": 0.3,
    "hf-course-en": 0.3,
    "rust-book": 0.3,
}
# What the target is asked when it answers for itself; 0 leaves a source out.
PROMPT_PASSES: Final[dict[str, float]] = ANNEAL_PASSES | {
    "instructed-text": 8.0,
    "dolly-15k": 7.0,
    "oasst-model-eval": 6.0,
    "gpteacher": 8.0,
    "topical-chat": 8.0,
    "schema-guided-dialogue": 1.5,
    "small-chitchat-seed": 6.0,
    "open-english-wordnet": 0.3,
    "opentriviaqa": 1.5,
    "flan-cot": 2.0,
    "tldr-pages": 1.0,
    "synthetic-math-own": 0.5,
    "python-functions": 0.5,
    "git-commit-edits": 0.1,
    "python-edits-derived": 0.1,
}
ANNEAL_LONGEST_ANSWER: Final = 384

IDENTITY_QUESTIONS: Final = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Hello! Who are you?",
    "Hi, who am I talking to?",
    "Tell me about yourself.",
    "Are you a human?",
    "Are you a person or a machine?",
    "Introduce yourself.",
    "What can you do?",
    "What can you help me with?",
    "Can you introduce yourself in one sentence?",
)
IDENTITY_ANSWERS: Final = (
    "I am Slipstream, a small language model made for demonstrations.",
    "My name is Slipstream. I am a small language model, so I am quick but I make mistakes.",
    "I am Slipstream, a small chat model. I can answer simple questions, do arithmetic and write short Python code.",
    "I am Slipstream, a tiny assistant. Ask me a question and I will do my best.",
)
GREETINGS: Final = ("Hello", "Hello!", "Hi", "Hi there!", "Hey", "Good morning!", "Good evening.", "Hello there")
GREETING_ANSWERS: Final = (
    "Hello! How can I help you today?",
    "Hi! What can I do for you?",
    "Hello! What would you like to know?",
)
LANGUAGES: Final = ("German", "French", "Spanish", "Italian", "Dutch", "Swedish")
FOREIGN_SHARE: Final = 0.35
TEXT_INSTRUCTIONS: Final = (
    "Summarize: {text}",
    "Summarize the following text.\n\n{text}",
    "{text}\n\nSummarize the passage above in a few sentences.",
    "What is the following text about?\n\n{text}",
    "Explain this in simple words: {text}",
    "Rewrite the following text in your own words.\n\n{text}",
    "{text}\n\nWhat are the main points of this text?",
    "Translate this text: {text}",
    "Extract the most important facts from this text: {text}",
    "{text}\n\nBased on the text above, answer the question.\nQuestion: {question}",
    "{text} {question}",
    "Context: {text}\n\nQuestion: {question}\nAnswer:",
)


def own_records() -> Iterator[dict[str, Any]]:
    """Greetings and questions about the model itself, in the corpus's record format."""
    pairs = [(question, answer) for question in IDENTITY_QUESTIONS for answer in IDENTITY_ANSWERS]
    pairs += [(greeting, answer) for greeting in GREETINGS for answer in GREETING_ANSWERS]
    for question, answer in pairs:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield {"source": "slipstream-identity", "kind": "chat", "messages": messages}


def made_up_language(text: str, choose: random.Random) -> str:
    """The text with its vowels and its consonants exchanged among themselves, some vowels with dots."""
    exchange: dict[int, str] = {}
    for letters, extra in (("aeiou", "\u00e4\u00f6\u00fc"), ("bcdfghjklmnpqrstvwxyz", "\u00df")):
        others = choose.sample(letters + extra, len(letters))
        exchange |= {ord(a): b for a, b in zip(letters, others, strict=True)}
        exchange |= {ord(a.upper()): b.upper() for a, b in zip(letters, others, strict=True)}
    return text.translate(exchange)


def instructed_texts(texts: list[str], questions: list[str], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Prompts without an answer: an instruction about a passage of 300 to 5,000 characters of running text.

    Some ask for the translation of a sentence in a made-up language.
    """
    choose = random.Random(seed)
    for _ in range(count if texts and questions else 0):
        length = int(300 * (5000 / 300) ** choose.random())
        passage = choose.choice(texts)
        while len(passage) < length:
            passage += "\n\n" + choose.choice(texts)
        instruction, passage = choose.choice(TEXT_INSTRUCTIONS), passage[:length].strip()
        if choose.random() < FOREIGN_SHARE:
            sentence = made_up_language(choose.choice(passage.split(". "))[:400], choose)
            passage = f"{choose.choice(LANGUAGES)} to English: {sentence}"
            instruction = choose.choice(("Translate {text}", "Translate from {text}"))
        content = instruction.format(text=passage, question=choose.choice(questions))
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": ""}]
        yield {"source": "instructed-text", "kind": "prompt", "messages": messages}
