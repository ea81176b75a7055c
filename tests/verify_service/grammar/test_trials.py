"""Grammars are tried out by a real process, which is ended where they take too long, and takes none with it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import load_tokenizer
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError, SlipstreamError
from support.schemas import ENDLESS
from verify_service.grammar.compiler import GrammarCompiler, Result
from verify_service.grammar.matcher import CompiledGrammar
from verify_service.grammar.trials import GrammarTrials

GOOD = Grammar(json_schema='{"type": "integer"}')
POLLS = 3000


def endless(number: int = 0) -> Grammar:
    return Grammar(json_schema=json.dumps({"title": str(number), **ENDLESS}))


def trials_of(folder: Path, seconds: float = 1.0) -> GrammarTrials:
    return GrammarTrials(folder, vocab_size=512, eos_token_ids=(2,), seconds=seconds)


@pytest.fixture
def trials(tiny_model: Path) -> Iterator[GrammarTrials]:
    trials = trials_of(tiny_model)
    yield trials
    trials.close()


@pytest.fixture
def patient(tiny_model: Path) -> Iterator[GrammarTrials]:
    trials = trials_of(tiny_model, seconds=60.0)
    yield trials
    trials.close()


def server_of(trials: GrammarTrials) -> int:
    assert trials._server is not None
    return trials._server.process.pid


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def tries_now(trials: GrammarTrials) -> tuple[int, int] | None:
    """The server that is there, if one is, and the process in which it tries a grammar."""
    server = trials._server
    try:
        return None if server is None else (server.process.pid, children(server.process.pid)[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(POLLS):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it does not come to that")


def refused(trials: GrammarTrials, grammar: Grammar) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        trials.run(grammar)
    assert caught.value.field == f"grammar.{grammar.kind}"
    return caught.value.message


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_compiles_is_taken_and_what_cannot_be_enforced_is_named(trials: GrammarTrials) -> None:
    for grammar in (GOOD, Grammar(choice=("a", "é")), Grammar(lark='start: "a" <|system|>')):
        trials.run(grammar)
    assert "not" in refused(trials, Grammar(json_schema='{"not": {}}'))
    assert "must have from 1" in refused(trials, Grammar(choice=()))


def test_a_trial_that_takes_too_long_is_ended_and_leaves_nothing_behind(trials: GrammarTrials) -> None:
    answers = queue.Queue[str]()
    many = [threading.Thread(target=lambda n=n: answers.put(refused(trials, endless(n)))) for n in range(3)]
    for thread in many:
        thread.start()
    trials.run(GOOD)  # beside them
    for _ in many:
        message = answers.get(timeout=60)
        assert message == "grammar.json_schema takes longer to compile than the limit of 1 s"
    assert children(server_of(trials)) == []
    open_files = psutil.Process(server_of(trials)).num_fds()
    trials.run(GOOD)
    assert psutil.Process(server_of(trials)).num_fds() == open_files


def test_a_trial_that_ends_its_process_is_refused_by_name(patient: GrammarTrials) -> None:
    answers = queue.Queue[str]()
    threading.Thread(target=lambda: answers.put(refused(patient, endless()))).start()
    wait_for(lambda: patient._server is not None and bool(children(server_of(patient))))
    (child,) = children(server_of(patient))
    os.kill(child, signal.SIGSEGV)
    assert answers.get(timeout=60) == "grammar.json_schema cannot be compiled: that ends its process (SIGSEGV)"


def test_a_trial_that_gets_no_processor_is_not_held_against_its_grammar(patient: GrammarTrials) -> None:
    told = queue.SimpleQueue[Result]()
    tokenizer = load_tokenizer(Path(patient._options.folder), vocab_size=512, eos_token_ids=(2,))
    compiler = GrammarCompiler(lambda: tokenizer, patient)
    for _ in range(2):  # it is tried again, as nothing is known of it
        assert compiler.compile(endless(), told.put) is None
        wait_for(lambda: tries_now(patient) is not None)
        os.kill(children(server_of(patient))[0], signal.SIGALRM)
        answer = told.get(timeout=60)
        assert isinstance(answer, ResourceExhaustedError)
        assert "the machine is too busy to do that in 1800 s" in answer.message


def test_a_server_that_was_killed_is_started_again(patient: GrammarTrials) -> None:
    patient.run(GOOD)
    first = server_of(patient)
    os.kill(first, signal.SIGKILL)
    patient.run(GOOD)
    assert server_of(patient) != first
    answers = queue.Queue[SlipstreamError | None]()

    def run() -> None:
        try:
            patient.run(endless())
        except SlipstreamError as error:
            answers.put(error)

    threading.Thread(target=run).start()
    for _ in range(2):  # the second attempt is the last
        wait_for(lambda: tries_now(patient) is not None)
        trial = tries_now(patient)
        assert trial is not None
        server, child = trial
        os.kill(server, signal.SIGKILL)
        wait_for(lambda child=child: not alive(child))
    error = answers.get(timeout=60)
    assert error is not None and error.retry_after is not None


OWNER = """
import os, sys, threading
from pathlib import Path
from slipstream.grammar.grammar import Grammar
from verify_service.grammar.trials import GrammarTrials
trials = GrammarTrials(Path(sys.argv[1]), vocab_size=512, eos_token_ids=(2,), seconds=60.0)
threading.Thread(target=trials.run, args=(Grammar(json_schema=sys.argv[2]),), daemon=True).start()
while trials._server is None:
    pass
print(trials._server.process.pid, flush=True)
threading.Event().wait()
"""


def test_trials_end_with_the_process_that_wants_them(tiny_model: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tiny_model), json.dumps(ENDLESS)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    wait_for(lambda: bool(children(server)))
    (child,) = children(server)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: not alive(server) and not alive(child))


def test_the_compiler_never_begins_what_its_trial_did_not_end(
    tiny_model: Path, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))
    compiler, told = GrammarCompiler(lambda: tokenizer, trials), queue.Queue[Result]()
    assert compiler.compile(endless(), told.put) is None
    assert compiler.compile(GOOD, told.put) is None
    first, second = told.get(timeout=60), told.get(timeout=60)
    assert isinstance(first, CompiledGrammar)
    assert isinstance(second, InvalidArgumentError) and "limit of 1 s" in second.message
    assert compiler.compile(endless(), told.put) is second, "the refusal is kept"
    assert (compiler.compiled, compiler.ended) == (1, 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("grammar")]
