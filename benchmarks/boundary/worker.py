"""Measures one place of the boundary benchmark, in a process of its own.

    python -m benchmarks.boundary.worker FILE OUTPUT

`benchmarks.boundary` writes FILE and starts this. OUTPUT has the rows measured so far at any time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.boundary.codec import codec_figures
from benchmarks.boundary.drafters import Drafters, drafters
from benchmarks.boundary.figures import Watched, plain_row, setting_row
from benchmarks.boundary.link import GPU_SPIN_SECONDS, SPIN_SECONDS, timed_link
from benchmarks.boundary.plan import PROPOSER
from benchmarks.boundary.settings import BEHIND, Measured, Setting
from benchmarks.lib.continuations import continuation_key, read_continuations, write_continuations
from benchmarks.lib.prompts import Prompt
from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.local_engine.local_loop import EngineConfig, Job, LocalLoop, local_loop
from benchmarks.local_engine.measured_model import MeasuredModel, PassTimes, make_weights, start_model
from benchmarks.local_engine.prompt_tokens import chat_token_ids
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

QUESTIONS = (
    "Why does a cyclist who rides close behind another one need less strength?",
    "Write a short story about a lighthouse keeper and a lost boat.",
    "How do bees find their way home? Explain it to a child.",
    "Describe how bread is made, from the field to the table.",
)
"""Asked by the requests in turn. Answers go on past their ends."""
BOUNDARIES = 3
PAGE_SIZE = 16
SWITCH_SECONDS = 5e-4
"""As in the verify service."""
TIMEOUT = 120.0


class Place:
    """A model, and the drafters of all settings."""

    def __init__(
        self, measured: Measured, model: MeasuredModel, found: Drafters, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        self._measured = measured
        self._model = model
        self._drafters = found
        self._prompts = [prompts[index % len(prompts)] for index in range(measured.requests)]

    def record(self) -> None:
        """Have what every request goes on with in the file of continuations."""
        path, measured = Path(self._measured.continuations), self._measured
        if path.exists():
            known = read_continuations(path)
            if all(len(known.get(_key(prompt), ())) >= measured.tokens for prompt in self._prompts):
                return
        jobs = [Job(prompt, measured.tokens) for prompt in dict.fromkeys(self._prompts)]
        with local_loop(self._model, config_of(measured, self._prompts)) as loop:
            answers = loop.run(jobs, measured.requests, timeout=TIMEOUT)
        pairs = zip(jobs, answers, strict=True)
        write_continuations(path, {_key(job.prompt): answer.token_ids for job, answer in pairs})

    def plain(self) -> dict[str, Any]:
        """Steps of the same requests without a drafter."""
        self._model.capture(())
        with local_loop(self._model, config_of(self._measured, self._prompts)) as loop:
            return plain_row(
                self._measured, self._watched(loop, [Job(p, self._measured.tokens) for p in self._prompts])
            )

    def setting(self, setting: Setting) -> dict[str, Any]:
        """Rounds with a drafter. What goes wrong is told in the row."""
        try:
            return self._setting(setting)
        except Exception as error:  # noqa: BLE001 - the other settings are measured all the same
            return setting_row(self._measured, setting, note=f"{type(error).__name__}: {error}")

    def _setting(self, setting: Setting) -> dict[str, Any]:
        measured, model = self._measured, self._model
        model.capture(())  # what the setting before asked for
        offered = (setting.transport,) if setting.own_process else ()
        engine = config_of(measured, self._prompts)
        spin, tokenizer = _spin(measured, setting), fingerprint(Path(measured.model)).tokenizer
        link = timed_link(model, engine, offered, deadline=measured.deadline, spin=spin, tokenizer=tokenizer)
        jobs = [Job(prompt, measured.tokens, proposer=PROPOSER, rows=setting.rows) for prompt in self._prompts]
        with self._drafters.attached(setting, link):
            with local_loop(model, engine, link) as loop:
                if setting.mode == BEHIND and not loop.loop.wait_idle(TIMEOUT):
                    raise TimeoutError(f"graphs of passes that keep states took more than {TIMEOUT:g} s")
                watched = self._watched(loop, jobs)
            state = link.state()
        return setting_row(measured, setting, watched, link, self._drafters.report(setting), state)

    def _watched(self, loop: LocalLoop, jobs: Sequence[Job]) -> Watched:
        """Rounds, and as many again with an eye on the device, which costs a little."""
        measured = self._measured
        with loop.decoding(jobs, timeout=TIMEOUT):
            arrivals = loop.watch(measured.rounds, settle=measured.settle, timeout=TIMEOUT)
            times = None
            if measured.device != "cpu":
                self._model.times = times = PassTimes()
                loop.watch(measured.rounds, settle=measured.settle, timeout=TIMEOUT)
                self._model.times = None
        return Watched(arrivals, times)


def config_of(measured: Measured, prompts: Sequence[tuple[int, ...]]) -> EngineConfig:
    """A loop with room for all requests, and trees of every setting's size. Prompts are always computed whole."""
    longest = max(map(len, prompts)) + measured.tokens + 1
    rows = max(setting.rows for setting in measured.settings)
    return EngineConfig(
        num_pages=measured.requests * (1 + -(-longest // PAGE_SIZE)),
        page_size=PAGE_SIZE,
        max_running=measured.requests,
        max_nodes=rows,
        step_nodes=measured.requests * (rows - 1),
        prefill_chunk=256,
        prefix_cache=False,
        max_context=longest,
    )


def measure(measured: Measured) -> Iterator[dict[str, Any]]:
    """The rows of a place, the plain one first."""
    folder = Path(measured.model)
    source = ModelConfig.from_folder(folder)
    config = source if measured.weights == "folder" else measured.shape.config(source)
    prompts = chat_token_ids(folder, [Prompt(text, "", (("user", text),)) for text in QUESTIONS])[: measured.requests]
    with drafters(measured, config) as found:
        weights = make_weights(measured.weights, folder, measured.shape, measured.device)
        engine = config_of(measured, prompts)
        model = start_model(weights, engine, mode=measured.engine_mode, boundaries=BOUNDARIES)
        place = Place(measured, model, found, prompts)
        place.record()
        gc.freeze()  # as the verify service does
        yield place.plain()
        for setting in measured.settings:
            yield place.setting(setting)


def _spin(measured: Measured, setting: Setting) -> float:
    """As of the verify service on this device."""
    return GPU_SPIN_SECONDS if setting.spins and measured.device != "cpu" else SPIN_SECONDS


def _key(prompt: tuple[int, ...]) -> str:
    return continuation_key(prompt, 0.0, 0)


def main() -> int:
    measured, output = Measured.read(Path(sys.argv[1])), Path(sys.argv[2])
    sys.setswitchinterval(SWITCH_SECONDS)
    rows: list[dict[str, Any]] = []
    content: dict[str, Any] = {"rows": rows}
    for row in measure(measured):
        rows.append(row)
        content["machine"] = content.get("machine") or gpu_machine(measured.device)
        content["codec"] = content.get("codec") or codec_figures(measured)
        write_json(output, content)
        print(f"{measured.place}: {row['transport']} {row['mode']}: {row['note'] or row['round ms']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
