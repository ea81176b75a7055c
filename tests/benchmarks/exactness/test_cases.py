from __future__ import annotations

import pytest

from benchmarks.exactness.cases import Case, make_cases
from benchmarks.lib.prompts import Prompt

PROMPTS = tuple(Prompt(f"q{number}", "ab"[number % 2], (("user", "?"),)) for number in range(40))
IDS = tuple(tuple(range(1 + number)) for number in range(40))


def crossed(cases: list[Case]) -> set[str]:
    return {case.prompt.name for case in cases if case.crossed}


def test_without_adapters_each_prompt_is_one_case_in_order() -> None:
    cases = make_cases(PROMPTS, IDS, quick=False)
    assert [case.name for case in cases] == [prompt.name for prompt in PROMPTS]
    assert len(crossed(cases)) == 12
    assert all(len(case.ids) <= 20 for case in cases if case.crossed)  # the shorter half
    assert {case.prompt.name for case in cases if case.logprobs} == crossed(cases)


@pytest.mark.parametrize("quick", [False, True])
def test_every_prompt_meets_every_adapter(quick: bool) -> None:
    cases = make_cases(PROMPTS, IDS, quick=quick, adapters=("red", "blue"))
    wanted = {(prompt.name, adapter) for prompt in PROMPTS for adapter in ("", "red", "blue")}
    assert {(case.prompt.name, case.adapter) for case in cases} == wanted and len(cases) == len(wanted)
    assert len({case.name for case in cases}) == len(cases)
    assert len(crossed(cases)) == 2  # of 12, shared by the model and two adapters, twice
    assert {(case.seed, case.ids) for case in cases} == {(case.seed, case.ids) for case in cases if case.adapter}
    assert [case.prompt.name for case in cases[:3]] != [cases[0].prompt.name] * 3


def test_a_job_is_of_its_adapter() -> None:
    case = Case(PROMPTS[0], IDS[0], 3, crossed=True, logprobs=True, adapter="red")
    job = case.job(1.0, 24, "none")
    assert (job.adapter, job.proposer, job.max_tokens, job.seed, job.logprobs) == ("red", "", 24, 3, 4)
    assert case.job(0.0, 1, "ngram").proposer == "ngram"
