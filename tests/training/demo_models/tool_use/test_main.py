"""The whole run on a CPU with tiny models: taught, put into OUT, and in the place of the old ones."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from slipstream.chat_template import ChatTemplate
from training.common.model import CausalLM, initialise
from training.common.model_shape import ModelShape
from training.demo_models.export import export, load
from training.demo_models.states import states_of
from training.demo_models.tokenizer import stop_ids
from training.demo_models.tool_use import install as install_module
from training.demo_models.tool_use.__main__ import main
from training.demo_models.tool_use.head import MemoryFeatures, head_settings, run
from training.demo_models.tool_use.install import NAMES, install
from training.demo_models.tool_use.learn import Answered
from training.demo_models.tool_use.settings import parse

HEADER = "---\nlicense: cc-by-sa-4.0\n---\n\n# {name}\n\nA model.\n\nStale figures.\n\n"
CARD = f"{HEADER}## Training\n\nLong.\n\n## Measured\n\n3.1\n"
SMALL = {
    "device": "cpu", "workers": 1, "row-length": 128, "longest": 400, "conversations": 40, "seconds": 3600,
    "target-steps": 2, "target-seconds": 600, "tool-rows": 1, "chat-rows": 1, "answer-seconds": 300, "answers": 8,
    "answers-a-time": 8, "answer-tokens": 8, "draft-steps": 2, "draft-seconds": 600, "draft-rows": 1,
    "head-seconds": 600, "head-steps": 2, "head-rows": 1, "head-row-length": 256, "head-trial-steps": 4,
    "head-tokens": 2000, "judged": 7, "compared": 2, "reserve": 1,
}  # fmt: skip


def records() -> list[dict[str, Any]]:
    def said(kind: str, source: str, question: str, answer: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return {"source": source, "kind": kind, "messages": messages}

    found = [said("chat", "opentriviaqa", f"Which river is number {n}?", f"River {n} is.") for n in range(12)]
    found += [said("math", "synthetic-math-own", f"What is {n} + 1?", f"{n} + 1 = {n + 1}.") for n in range(12)]
    found += [said("code", "gpteacher", f"Print {n}.", f"print({n})") for n in range(4)]
    text = "A cyclist in the slipstream of another one has an easy day. " * 12
    return [*found, *({"source": "python-peps", "kind": "text", "text": f"{n}. {text}"} for n in range(4))]


def tiny(seed: int, layers: int, tokenizer: Tokenizer, folder: Path) -> CausalLM:
    model = CausalLM(ModelShape(tokenizer.get_vocab_size(), 64, layers, 2, 1, 32, 64), torch.float32)
    initialise(model, seed)
    rows = model.model.embed_tokens.weight.data  # an answer is "the", then the end
    asked = rows[tokenizer.token_to_id("<|assistant|>")].clone()
    other = torch.randn(64, generator=torch.Generator().manual_seed(seed)) * asked.std()
    rows[tokenizer.token_to_id("the")] = 50 * (asked + other)
    rows[stop_ids(tokenizer)] = 200 * (3 * other - asked)
    export(model.requires_grad_(False), tokenizer, folder)
    return load(folder, torch.float32, "cpu")


@pytest.fixture(scope="module")
def flags(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run, whose models are there: a target of 8 layers, a draft model, and a head that knows nothing."""
    base = tmp_path_factory.mktemp("tool_use")
    folders = {name: base / name for name in ("models", "corpus", "eval-prompts", "work", "out")}
    told = [part for name, folder in folders.items() for part in (f"--{name}", str(folder))]
    told += [part for name, value in SMALL.items() for part in (f"--{name}", str(value))] + ["--no-compile"]
    for name in ("corpus", "eval-prompts"):
        folders[name].mkdir()
    for name in ("corpus", "heldout"):
        with lzma.open(folders["corpus"] / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records())
    for name in ("spec_bench_question", "in_domain_heldout"):
        asked = [{"set": name, "source": "s", "task": "chat", "category": "chat", "reference": ""} for _ in range(2)]
        for number, each in enumerate(asked):
            question = f"Say {number}."
            each |= {"id": str(number), "turns": [question], "messages": [{"role": "user", "content": question}]}
        lines = map(json.dumps, asked)
        (folders["eval-prompts"] / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    target = tiny(1, 8, tokenizer, folders["models"] / NAMES[0])
    tiny(2, 2, tokenizer, folders["models"] / NAMES[1])
    said = Answered([np.arange(5, 25, dtype=np.uint16)] * 4, [[9, 8, 7, 6]] * 4, [False] * 4)
    features = MemoryFeatures(folders["models"] / NAMES[0], states_of(target, said))
    settings = replace(head_settings(parse(told), folders["models"], 1, 1e-3), start=None)
    run(parse(told).device, features, features, settings, base / "head")
    shutil.copytree(base / "head" / "head", folders["models"] / NAMES[2])
    for name in NAMES:
        (folders["models"] / name / "README.md").write_text(CARD.format(name=name), "utf-8")
    (folders["models"] / NAMES[0] / "loss.png").write_bytes(b"picture")
    return told


def test_a_run_replaces_the_models(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse(flags)
    before = {name: (options.models / name / "README.md").read_text("utf-8") for name in NAMES}
    weights = {name: min((options.models / name).glob("*.safetensors")).read_bytes() for name in NAMES}
    main([*flags, "--install"])
    results = json.loads((options.out / "results.json").read_text("utf-8"))
    assert results["target_steps"] == 2 and "done" in results
    assert {"target before", "target after", "draft after", "head after"} <= results.keys()
    assert sorted(path.name for path in options.models.iterdir()) == sorted(NAMES)
    for name in NAMES:
        folder = options.models / name
        assert min(folder.glob("*.safetensors")).read_bytes() != weights[name]
        card = (folder / "README.md").read_text("utf-8")
        assert card.startswith(before[name].split("\n\nStale")[0])
        assert "## Training\n\nLong." in card and "## Tools and JSON" in card
        assert "Stale" not in card and "3.1\n" not in card
    assert (options.models / NAMES[0] / "loss.png").read_bytes() == b"picture"
    template = json.loads((options.models / NAMES[0] / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    shown = ChatTemplate(template, {"bos_token": "<b>"}).render(
        [{"role": "user", "content": "Hi"}], tools=[tool], add_generation_prompt=True
    )
    assert '"name": "f"' in shown and shown.endswith("<|assistant|>")

    kept = {path: path.read_bytes() for path in options.models.rglob("*") if path.is_file()}
    monkeypatch.setattr(install_module, "MOST_BYTES", 1000)
    with pytest.raises(RuntimeError, match="the limit is 1000"):
        install(options.out, options.models)
    monkeypatch.undo()
    next(options.out.glob(f"{NAMES[2]}-*.tar")).unlink()
    with pytest.raises(RuntimeError, match="eagle3 is not there"):
        install(options.out, options.models)
    (options.out / "results.json").write_text("{}", "utf-8")
    with pytest.raises(RuntimeError, match="has not come to its end"):
        install(options.out, options.models)
    assert {path: path.read_bytes() for path in options.models.rglob("*") if path.is_file()} == kept
