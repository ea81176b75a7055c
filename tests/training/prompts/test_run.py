"""The stage as a whole: the same bytes whatever happens on the way."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.ask import wait_until
from training.common.atomic_files import MismatchError
from training.prompts import run
from training.prompts.records import Turn
from training.prompts.run import clean_prompts, is_heldout
from training.prompts.settings import PromptSettings
from training.prompts.store import MANIFEST, OUTPUTS, Store, remove_run, remove_state

WORDS = [f"word{number}" for number in range(900)]
LIGHT = PromptSettings(kinds=("secret",))
"""Needs no recogniser that takes seconds to load."""


def text(seed):
    return " ".join(random.Random(seed).choices(WORDS, k=30))


def write_prompts(path, count, first=0):
    lines = [
        json.dumps({"prompt": text(number), "task": f"task {number % 3}"}) for number in range(first, first + count)
    ]
    lines[5 % count :: 40] = [json.dumps({"prompt": text(first)})] * len(lines[5 % count :: 40])
    lines[7 % count :: 50] = [json.dumps({"prompt": text(first + 1) + " more"})] * len(lines[7 % count :: 50])
    lines[9 % count :: 60] = ["{torn"] * len(lines[9 % count :: 60])
    path.write_text("\n".join(lines) + "\n")
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def records(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def clean(inputs, folder, settings=LIGHT, workers=1, against=()):
    return clean_prompts(inputs, folder, settings, against=against, workers=workers, progress=False)


def test_each_line_is_kept_or_dropped_for_a_reason(tmp_path, demo_model):
    lines = [
        {"prompt": "Write to ann.lee@example.com about the weather in the north of the country, please."},
        {"prompt": "Write to ann.lee@example.com about the weather in the north of the country, please."},
        {"prompt": "Write to bob.ray@example.com about the weather in the north of the country, please!"},
        {"prompt": "Was ist der Unterschied zwischen Wetter und Klima, und warum ist das so wichtig?"},
        {"prompt": "word " * 400},
        {"prompt": "Hi"},
        {"answer": "none"},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = PromptSettings(model=demo_model, languages=("en",), min_tokens=3, max_tokens=200, heldout=0.0)
    manifest = clean([tmp_path / "in.jsonl"], tmp_path / "out", settings)
    assert [each["reason"] for each in records(tmp_path / "out" / "dropped.jsonl")] == [
        "duplicate", "near-duplicate", "language", "too long", "too short", "malformed",
    ]  # fmt: skip
    (kept,) = records(tmp_path / "out" / "train.jsonl")
    assert kept["messages"][0]["content"].startswith("Write to [EMAIL] about")
    assert kept["origin"] == "in.jsonl:1"
    assert manifest["personal_data"] == {"email": 2}
    assert manifest["cleaned"] == 1
    report = (tmp_path / "out" / "report.md").read_text()
    assert "an*.***@*******.***" in report
    assert "ann.lee" not in report + (tmp_path / "out" / MANIFEST).read_text()


def test_what_is_evaluated_on_is_kept_out(tmp_path):
    questions = {
        "q.jsonl": [{"turns": [text(0), "And then?"]}, {"prompt": f"{text(1)} Write to ann.lee@example.com."}],
        "r.jsonl": [{"nothing": 1}, {"question": text(2)}],
    }
    for name, lines in questions.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    longer = [("user", f"{text(2).upper()}!"), ("assistant", "Well."), ("user", text(9))]
    asked = [
        {"prompt": text(3)}, {"prompt": text(0)}, {"prompt": f"{text(1)} Write to bob.ray@example.com!"},
        {"turns": [text(0), "And then?"]}, {"messages": [{"role": role, "content": said} for role, said in longer]},
        {"prompt": "And then?"}, {"prompt": text(3) + "."},
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asked)))
    settings = PromptSettings(kinds=("email",), heldout=0.0)
    against = [tmp_path / name for name in questions]
    manifest = clean([tmp_path / "in.jsonl"], tmp_path / "out", settings, against=against)
    assert manifest["dropped"] == {"evaluation": 4, "near-duplicate": 1}
    dropped = records(tmp_path / "out" / "dropped.jsonl")
    assert [each["detail"] for each in dropped if each["reason"] == "evaluation"] == [
        "like q.jsonl:1", "like q.jsonl:2", "like q.jsonl:1", "like r.jsonl:2",
    ]  # fmt: skip
    kept = [each["messages"][0]["content"] for each in records(tmp_path / "out" / "train.jsonl")]
    assert kept == [text(3), "And then?"]
    with pytest.raises(MismatchError):
        clean([tmp_path / "in.jsonl"], tmp_path / "out", settings)
    (tmp_path / "none.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"none.jsonl holds no prompt"):
        clean([tmp_path / "in.jsonl"], tmp_path / "other", settings, against=[tmp_path / "none.jsonl"])


def test_what_is_under_way_is_forgotten_once_it_is_settled(tmp_path, monkeypatch):
    lines = [json.dumps({"prompt": text(number % 200)}) + "\n" for number in range(900)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    settle, left = run._settle, []

    def settled(chunk, store, settings, pending):
        done = settle(chunk, store, settings, pending)
        left.append(len(pending))
        return done

    monkeypatch.setattr(run, "_settle", settled)
    manifest = clean([tmp_path / "in.jsonl"], tmp_path / "out")
    assert manifest["dropped"] == {"duplicate": 700}
    assert left[-1] == 0


def test_answers_and_texts_are_cleaned_too_where_they_are_kept(tmp_path):
    lines = [
        {"question": "What is their address?", "answer": "Write to ann.lee@example.com, please."},
        {"question": "What is their address?", "answer": "I do not know."},
        {"text": "Write to bob.ray@example.com about the weather."},
        {"text": "Another text altogether."},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = PromptSettings(kinds=("email",), keep_answers=True, heldout=0.0)
    clean([tmp_path / "in.jsonl"], tmp_path / "out", settings)
    kept = records(tmp_path / "out" / "train.jsonl")
    assert [each["content"] for each in kept[0]["messages"]] == ["What is their address?", "Write to [EMAIL], please."]
    assert [each["text"] for each in kept[1:]] == ["Write to [EMAIL] about the weather.", "Another text altogether."]


def test_personal_data_can_cost_the_prompt(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "password = \'hunter22x!\'"}\n{"prompt": "Something else."}\n')
    manifest = clean([tmp_path / "in.jsonl"], tmp_path / "out", PromptSettings(kinds=("secret",), personal="drop"))
    assert manifest["dropped"] == {"personal data": 1}
    assert sum(manifest["kept"].values()) == 1


def test_workers_and_compression_change_no_byte(tmp_path):
    plain = write_prompts(tmp_path / "in.jsonl", 700)
    clean([plain], tmp_path / "one")
    clean([plain], tmp_path / "three", workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    (tmp_path / "zipped").mkdir()
    zipped = tmp_path / "zipped" / "in.jsonl"
    zipped = zipped.with_name("in.jsonl.gz")
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    clean([zipped], tmp_path / "of_zipped")
    assert [each["id"] for each in records(tmp_path / "one" / "train.jsonl")] == [
        each["id"] for each in records(tmp_path / "of_zipped" / "train.jsonl")
    ]


def test_a_text_never_changes_sides(tmp_path):
    settings = PromptSettings(kinds=(), heldout=0.3)
    first, second = write_prompts(tmp_path / "a.jsonl", 300), write_prompts(tmp_path / "b.jsonl", 300, first=1000)
    clean([first], tmp_path / "few", settings)
    clean([second, first], tmp_path / "many", settings)
    for split in ("train", "heldout"):
        few = {each["id"] for each in records(tmp_path / "few" / f"{split}.jsonl")}
        many = {each["id"] for each in records(tmp_path / "many" / f"{split}.jsonl")}
        assert few < many
    share = sum(is_heldout([Turn("user", text(number))], 0.3) for number in range(2000)) / 2000
    assert share == pytest.approx(0.3, abs=0.04)


def start(inputs, folder):
    command = [sys.executable, "-m", "training", "prompts", *map(str, inputs), "--out", str(folder)]
    command += ["--kinds", "secret", "--workers", "2", "--against", str(inputs[0].with_name("q.jsonl"))]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def written(folder):
    part = folder / "train.jsonl.part"
    return part.stat().st_size if part.exists() else 0


def children(pid):
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in tasks.read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="watches processes through /proc")
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_without_loss_or_duplicates(tmp_path):
    inputs = [write_prompts(tmp_path / "a.jsonl", 1500), write_prompts(tmp_path / "b.jsonl", 1500, first=5000)]
    questions = tmp_path / "q.jsonl"
    questions.write_text(json.dumps({"prompt": text(800)}))
    clean(inputs, tmp_path / "whole", against=[questions])
    folder = tmp_path / "killed"

    def killed(share):
        process = start(inputs, folder)
        goal = share * (tmp_path / "whole" / "train.jsonl").stat().st_size
        while process.poll() is None and written(folder) <= goal:
            time.sleep(0.005)
        workers = children(process.pid) if process.poll() is None else []
        process.kill()
        process.communicate()
        wait_until(lambda: not any(map(alive, workers)), "a worker outlived its parent", 60.0)
        return process.returncode == -signal.SIGKILL

    def killed_in_time():
        shutil.rmtree(folder, ignore_errors=True)
        return all(map(killed, (0.0, 0.3, 0.6)))

    wait_until(killed_in_time, "the runs were too short for this test")
    assert not (folder / MANIFEST).exists()
    last = start(inputs, folder)
    errors = last.communicate(timeout=100)[1]
    assert last.returncode == 0, errors
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_run_killed_while_it_named_its_outputs_goes_on(tmp_path):
    inputs = [write_prompts(tmp_path / "in.jsonl", 300)]
    manifest = clean(inputs, tmp_path / "whole")
    for named in range(len(OUTPUTS) + 1):
        folder = tmp_path / f"killed after {named}"
        task = {name: manifest[name] for name in ("settings", "inputs", "against")}
        store = Store(folder, LIGHT, task)
        for name in OUTPUTS:
            store.write(name, {"some": "line"})
        store.commit()
        store.write("train.jsonl", {"line": "that does not count"})
        store.close()
        for name in OUTPUTS[:named]:
            (folder / f"{name}.part").rename(folder / name)
        again = Store(folder, LIGHT, task)
        again.finish(task, "report")
        again.close()
        remove_state(folder)
        assert {path.name for path in folder.iterdir()} == {*OUTPUTS, MANIFEST, "report.md"}
        assert (folder / "train.jsonl").read_bytes() == b'{"some": "line"}\n'


def test_a_finished_run_is_not_done_again_and_another_is_refused(tmp_path):
    inputs = [write_prompts(tmp_path / "in.jsonl", 200)]
    first = clean(inputs, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert clean(inputs, tmp_path / "out") == first
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    with pytest.raises(MismatchError, match="of no run that can go on"):
        clean(inputs, tmp_path / "out", PromptSettings(kinds=()))
    remove_run(tmp_path / "out")
    assert clean(inputs, tmp_path / "out", PromptSettings(kinds=()))["settings"]["kinds"] == []


def test_a_run_under_way_takes_no_other_settings_and_no_second_process(tmp_path):
    inputs = [write_prompts(tmp_path / "in.jsonl", 200)]
    task = {"settings": LIGHT.document(), "inputs": [], "against": []}
    store = Store(tmp_path / "out", LIGHT, task)
    store.commit()
    with pytest.raises(MismatchError, match="in use"):
        Store(tmp_path / "out", LIGHT, task)
    store.close()
    with pytest.raises(MismatchError, match="a run with other inputs"):
        clean(inputs, tmp_path / "out")
