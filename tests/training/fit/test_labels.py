"""Labels that the target did not produce are refused before anything is learnt from them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch

from support.fit_sources import InMemory, answered, small_target, states_of
from training.common.model import CausalLM
from training.features.source import FeatureSequence
from training.fit.labels import LabelError, examine
from training.fit.target import TargetRows

FINAL = slice(96, 128)
END = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[CausalLM, Path]:
    folder = tmp_path_factory.mktemp("target")
    return small_target(folder), folder


@pytest.fixture(scope="module")
def right(model: tuple[CausalLM, Path]) -> InMemory:
    """Sampled at temperature 1."""
    texts = [answered(model[0], number, prompt=10, answer=20) for number in range(14)]
    return InMemory(model[1], texts)


def changed(source: InMemory, change: Callable[[FeatureSequence], FeatureSequence]) -> InMemory:
    return InMemory(source.model, [change(each) for each in source.sequences])


def looks(source: InMemory):
    recorded = np.array([each.recorded for each in source.sequences])
    return examine(source, TargetRows(source.model, torch.device("cpu"), torch.float32), FINAL, (END,), recorded)


def look(source: InMemory):
    (report,) = looks(source)
    return report


def test_the_targets_own_tokens_pass(right: InMemory) -> None:
    report = look(right)
    report.demand()
    assert abs(report.produced.nats - report.produced.entropy) < 4 * report.produced.error
    assert report.late.nats > report.produced.nats + 1 and report.early.nats > report.produced.nats + 1


def rolled(produced: torch.Tensor, shift: int) -> torch.Tensor:
    return produced.roll(shift) & (torch.arange(len(produced)) >= max(0, shift))


def test_shifted_masks_are_refused(right: InMemory) -> None:
    for shift in (-1, 1):
        longer = changed(right, with_end)
        wrong = changed(longer, lambda each, by=shift: replace(each, produced=rolled(each.produced, by)))
        with pytest.raises(LabelError, match=r"the mask is shifted|first tokens of answers"):
            look(wrong).demand()


def with_end(each: FeatureSequence) -> FeatureSequence:
    """The answer ends in a token that ends texts, and a prompt follows."""
    tail = torch.tensor([END, 9, 8])
    produced = torch.cat((each.produced, torch.tensor([True, False, False])))
    states = torch.cat((each.states, each.states[-3:]))
    return replace(each, token_ids=torch.cat((each.token_ids, tail)), produced=produced, states=states)


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_states_are_refused_and_named(right: InMemory, shift: int) -> None:
    wrong = changed(right, lambda each: replace(each, states=each.states.roll(shift, 0)))
    with pytest.raises(LabelError, match="shifted against each other"):
        look(wrong).demand()


def test_a_mask_over_everything_is_refused(right: InMemory) -> None:
    wrong = changed(right, lambda each: replace(each, produced=torch.arange(len(each.produced)) >= 1))
    with pytest.raises(LabelError, match="would hardly have written"):
        look(wrong).demand()


def test_another_models_states_are_refused(right: InMemory, tmp_path: Path) -> None:
    other = small_target(tmp_path, seed=1)
    wrong = changed(right, lambda each: replace(each, states=states_of(other, each.token_ids)))
    with pytest.raises(LabelError, match="would hardly have written"):
        look(wrong).demand()


def test_another_template_is_refused(right: InMemory, model: tuple[CausalLM, Path]) -> None:
    """The states are those after another prompt than the one that was answered."""

    def elsewhere(each: FeatureSequence) -> FeatureSequence:
        ids = each.token_ids.clone()
        ids[8:10] = torch.tensor([5, 6])
        return replace(each, token_ids=ids, states=states_of(model[0], ids))

    with pytest.raises(LabelError, match=r"would hardly have written.*\d nats where \d+\.\d\d are expected"):
        look(changed(right, elsewhere)).demand()


@pytest.fixture(scope="module")
def recorded(model: tuple[CausalLM, Path]) -> InMemory:
    """Behind one and the same token another author, who likes other tokens; as the target's own they are refused."""
    return InMemory(model[1], [written_by_another(model[0], number) for number in range(10)])


def written_by_another(model: CausalLM, number: int) -> FeatureSequence:
    generator = torch.Generator().manual_seed(number)
    ids = torch.cat((torch.randint(4, 128, (9,), generator=generator), torch.tensor([7])))
    for _ in range(20):
        liked = model(ids[None])[0, -1].div(1.5).softmax(-1)
        ids = torch.cat((ids, torch.multinomial(liked, 1, generator=generator)))
    ids = torch.cat((ids, torch.tensor([END, 9, 8])))
    produced = (torch.arange(33) >= 10) & (torch.arange(33) < 31)
    return FeatureSequence(str(number), "test", ids, produced, states_of(model, ids), recorded=True)


def test_what_others_wrote_may_surprise(recorded: InMemory) -> None:
    report = look(recorded)
    report.demand()
    assert report.document()["recorded_nats"] < report.document()["recorded_nats_shifted"] - 1
    with pytest.raises(LabelError, match="would hardly have written"):
        look(changed(recorded, lambda each: replace(each, recorded=False))).demand()


def test_recordings_and_answers_are_looked_at_apart(right: InMemory, recorded: InMemory) -> None:
    both = [each for pair in zip_longest(right.sequences, recorded.sequences) for each in pair if each]
    own, others = looks(InMemory(right.model, both))
    assert (own.recorded, others.recorded) == (False, True)
    assert own.produced == look(right).produced and others.produced == look(recorded).produced


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_states_and_masks_of_recordings_are_refused(recorded: InMemory, shift: int) -> None:
    wrong = changed(recorded, lambda each: replace(each, states=each.states.roll(shift, 0)))
    with pytest.raises(LabelError, match="shifted against each other"):
        look(wrong).demand()
    wrong = changed(recorded, lambda each: replace(each, produced=rolled(each.produced, shift)))
    with pytest.raises(LabelError, match="the mask is shifted"):
        look(wrong).demand()


def test_a_mask_that_begins_late_and_another_models_states_are_refused(recorded: InMemory, tmp_path: Path) -> None:
    late = changed(recorded, lambda each: replace(each, produced=each.produced & each.produced.roll(1)))
    with pytest.raises(LabelError, match="begin behind the same token"):
        look(late).demand()
    other = small_target(tmp_path, seed=1)
    foreign = changed(recorded, lambda each: replace(each, states=states_of(other, each.token_ids)))
    with pytest.raises(LabelError, match="another model's"):
        look(foreign).demand()
