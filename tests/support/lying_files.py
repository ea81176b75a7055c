"""Start-up checks of every kind of checkpoint file on mutations of it, in processes that may take 1 GiB more.

    PYTHONPATH=tests python tests/support/lying_files.py --count 2000 [--kind NAME ...] [--seed 0]

prints a row for each kind: how many were refused by one line, how many loaded and answered, how many failed (a
traceback, a crash, a hang, or more memory), and the seeds of those that failed. `--replay KIND SEED` shows one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import mutators
from support.mutators import Mutator

MEMORY = 1 << 30
"""Bytes that a check may take beyond what its process has before."""
SECONDS = 60.0
"""How long one may take, on a busy machine."""
PER_PROCESS = 250
ROOT = Path(__file__).resolve().parents[2]
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Kind:
    """A file of one of the folders of `write_folders`, how it is mutated, and what starts up with it."""

    folder: str
    file: str
    mutate: Mutator
    check: str
    argument: str = ""


def _folder_kinds(name: str, check: str, weights: str = "model.safetensors", argument: str = "") -> dict[str, Kind]:
    mutate: dict[str, Mutator] = {"header": mutators.header, "body": mutators.body}
    if not weights.endswith("safetensors"):
        mutate = {"bytes": mutators.damaged}
    parts = {part: Kind(name, weights, each, check, argument) for part, each in mutate.items()}
    return {
        f"{name} config.json": Kind(name, "config.json", mutators.json_text, check, argument),
        **{f"{name} {weights} {part}": kind for part, kind in parts.items()},
    }


KINDS: dict[str, Kind] = {
    **_folder_kinds("target", "target", "model-00001-of-00002.safetensors"),
    **_folder_kinds("fp8", "target"),
    **_folder_kinds("w4a16", "target"),
    **_folder_kinds("awq", "target"),
    **_folder_kinds("gptq", "target"),
    "target generation_config.json": Kind("target", "generation_config.json", mutators.json_text, "target"),
    "target index": Kind("target", "model.safetensors.index.json", mutators.json_text, "target"),
    "tokenizer.json": Kind("target", "tokenizer.json", mutators.json_text, "tokenizer"),
    "tokenizer_config.json": Kind("target", "tokenizer_config.json", mutators.json_text, "tokenizer"),
    **_folder_kinds("draft", "draft-model"),
    **_folder_kinds("eagle1", "eagle", argument=":target={root}/shared"),
    **_folder_kinds("eagle1-pickled", "eagle", "pytorch_model.bin", ":target={root}/shared"),
    **_folder_kinds("eagle3", "eagle3", argument=":target={root}/shared"),
    **_folder_kinds("medusa", "medusa", argument=":target={root}/shared"),
    **_folder_kinds("mlp", "mlp-speculator", argument=":target={root}/shared"),
    **_folder_kinds("mtp", "mtp"),
    "token map": Kind("map", "freq.pt", mutators.damaged, "mlp-speculator", ""),
}


def write_folders(root: Path) -> None:
    """One small folder of every kind."""
    import torch

    from support import eagle_heads, medusa_heads, mlp_speculators, mtp_heads
    from support.models import make_tiny_model
    from support.quantised_models import FORMS, write_quantised

    sizes = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 2,
        "head_dim": 16,
        "max_context": 128,
    }
    make_tiny_model(root / "target", shards=2, tied=False, **sizes)
    make_tiny_model(root / "draft", layers=1, **sizes)
    make_tiny_model(root / "whole-groups", layers=1, **sizes | {"intermediate_size": 64})
    for name, form in (("fp8", "fp8 block"), ("w4a16", "pack4 g32"), ("awq", "awq g32"), ("gptq", "gptq asymmetric")):
        write_quantised(root / "whole-groups", root / name, FORMS[form])
    eagle_heads.write_target(root / "shared")
    eagle_heads.write_head(root / "eagle1", eagle_heads.EAGLE1["two layers"])
    eagle_heads.write_head(root / "eagle1-pickled", eagle_heads.EAGLE1["no bias"])
    eagle_heads.write_head(root / "eagle3", eagle_heads.EAGLE3["layers.0"])
    medusa_heads.write_medusa(root / "medusa", medusa_heads.LAYOUTS["vLLM, map"])
    mlp_speculators.write_speculator(root / "mlp", mlp_speculators.LAYOUTS["one head"])
    shutil.copytree(root / "mlp", root / "map")
    torch.save([7, 3, 90], root / "map" / "freq.pt")
    eagle_heads.write_target(root / "mtp")
    mtp_heads.write_mtp(root / "mtp", mtp_heads.LAYOUTS["MiMo"])


def check(kind: Kind, folder: Path, root: Path) -> None:
    """Start up with a folder, and have it answer. Raises what the services' entry points turn into a line."""
    if kind.check == "target":
        from verify_service.config import VerifySettings
        from verify_service.server.model_loader import load

        load(VerifySettings(model=folder, threads=1, max_running=2, max_nodes=8, feature_memory_mib=1))
    elif kind.check == "tokenizer":
        from gateway.tokens.tokenizer import Tokenizer
        from slipstream.chat_template import ChatTemplate

        tokenizer = Tokenizer(folder)
        detokenizer = tokenizer.detokenizer()
        for token in tokenizer.encode("A cyclist rides: 42 é", add_special_tokens=True)[:50]:
            detokenizer.step(token)
        _rendered(ChatTemplate.from_folder(folder))
    else:
        from draft_service.proposers.registry import ProposerSpec, load_proposers

        argument = kind.argument.format(root=root)
        if kind.folder == "map":
            argument = f":token_map={folder}/freq.pt"
        load_proposers([ProposerSpec.parse(f"{kind.check}:{folder}{argument}")], threads=1, max_nodes=8, max_depth=3)


def _rendered(template: object) -> None:
    """A template may refuse messages, which is an error of a request."""
    from slipstream.rpc.errors import InvalidArgumentError

    with contextlib.suppress(InvalidArgumentError):
        template.render([{"role": "user", "content": "Hello"}])


def outcome(name: str, seed: int, root: Path, *, show: bool = False) -> str:
    """`loads`, `refused: ...`, or `failed: ...` of one mutation."""
    from slipstream.rpc.errors import SlipstreamError
    from slipstream_kernels.models.checkpoint.model_config import CheckpointError

    kind = KINDS[name]
    content = (root / kind.folder / kind.file).read_bytes()
    changed = kind.mutate(content, random.Random(f"{name} {seed}"))
    with tempfile.TemporaryDirectory(dir=root.parent) as place:
        folder = Path(place) / "model"
        folder.mkdir()
        for path in (root / kind.folder).iterdir():
            if path.name != kind.file:
                (folder / path.name).symlink_to(path)
        (folder / kind.file).write_bytes(changed)
        try:
            check(kind, folder, root)
        except (SlipstreamError, CheckpointError) as error:
            if show:
                traceback.print_exc()
            return _judged(error)
        except BaseException as error:  # noqa: BLE001 - panics of libraries are no Exceptions
            if show:
                traceback.print_exc()
            return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]} at {_where(error)}"
    return "loads"


def _judged(error: BaseException) -> str:
    """A refusal is one readable line, and comes before memory is taken."""
    text, cause = str(error), error
    while cause is not None:
        if isinstance(cause, MemoryError) or "alloc" in str(cause).lower():
            return f"failed: out of memory: {text[:200]}"
        cause = cause.__cause__
    if "\n" in text or len(text) > 1000 or not text:
        return f"failed: not one line: {text[:200]!r}"
    return f"refused: {text}"


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def work(root: Path) -> None:
    """Child: answers lines of `kind TAB seed` with their outcomes, once all is compiled and the memory limited."""
    logging.disable(logging.ERROR)
    for name in {kind.check: name for name, kind in reversed(KINDS.items())}.values():
        check(KINDS[name], root / KINDS[name].folder, root)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        name, seed = line.rstrip("\n").split("\t")
        print(json.dumps(outcome(name, int(seed), root)), flush=True)


@dataclass(slots=True)
class Tally:
    """What became of the mutations of a kind."""

    refused: int = 0
    loaded: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


class Child:
    """A process that checks, started again when it has died or done its share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.process: subprocess.Popen[str] | None = None
        self._left = 0

    def outcome(self, name: str, seed: int) -> str:
        """As `outcome`; of a process that dies or hangs, how it does."""
        if self.process is None or not self._left:
            self.close()
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None
        self._left -= 1
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{name}\t{seed}\n")
            process.stdin.flush()
        answer = self._line()
        if answer is None:
            self.close()
            return f"failed: killed, or no answer within {SECONDS:g} s: status {process.returncode}"
        return str(json.loads(answer))

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate()
            self.process = None

    def _start(self) -> None:
        command = [sys.executable, __file__, "--work", str(self._root)]
        paths = os.pathsep.join(str(ROOT / part) for part in ("tests", ".", "kernels", "protos"))
        environment = {**os.environ, "PYTHONPATH": paths}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._left = PER_PROCESS
        assert self._line(10 * SECONDS) is not None, "the unchanged folders do not load"

    def _line(self, seconds: float = SECONDS) -> str | None:
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        return self.process.stdout.readline() or None


def run(names: Sequence[str], count: int, seed: int, root: Path, on_kind: Callable[[str, Tally], None]) -> None:
    """Check `count` mutations of each kind, the seeds from `seed` on."""
    child = Child(root)
    try:
        for name in names:
            tally = Tally()
            for number in range(seed, seed + count):
                result = child.outcome(name, number)
                if result == "loads":
                    tally.loaded += 1
                elif result.startswith("refused"):
                    tally.refused += 1
                else:
                    tally.failures.append((number, result))
            on_kind(name, tally)
    finally:
        child.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--replay", nargs=2, metavar=("KIND", "SEED"))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as place:
        root = Path(place) / "folders"
        write_folders(root)
        if options.replay:
            print(outcome(options.replay[0], int(options.replay[1]), root, show=True))
            return
        print("| file | refused | loads and answers | failed |\n|---|---|---|---|", flush=True)

        def row(name: str, tally: Tally) -> None:
            print(f"| {name} | {tally.refused} | {tally.loaded} | {len(tally.failures)} |", flush=True)
            for number, failure in tally.failures[:20]:
                print(f"    seed {number}: {failure}", flush=True)

        run(options.kind or list(KINDS), options.count, options.seed, root, row)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    main()
