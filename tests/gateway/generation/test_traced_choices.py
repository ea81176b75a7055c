"""The operator's limit of traced choices."""

from __future__ import annotations

import pytest

from gateway.core.request import ChoiceRequest, Sampling
from gateway.generation.traced_choices import TracedChoices
from slipstream.generation_types import SpeculationOptions
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError

TRACED = ChoiceRequest([1], Sampling(), SpeculationOptions(trace=True))
PLAIN = ChoiceRequest([1], Sampling(), SpeculationOptions())
SILENT = ChoiceRequest([1], Sampling())


def test_choices_count_until_they_end() -> None:
    traced = TracedChoices(3)
    traced.begin([TRACED, TRACED])
    with pytest.raises(ResourceExhaustedError, match="at most 3 choices are traced at a time, 2 are") as refused:
        traced.begin([TRACED, TRACED])
    assert refused.value.field == "speculation.trace"
    traced.begin([TRACED])
    traced.end([TRACED, TRACED])
    traced.begin([TRACED, TRACED])


def test_more_than_ever_fit_are_refused_for_good() -> None:
    TracedChoices(2).check([TRACED, TRACED])
    with pytest.raises(InvalidArgumentError, match="at most 2 choices are traced at a time, the request has 3"):
        TracedChoices(2).check([TRACED] * 3)
    with pytest.raises(InvalidArgumentError, match="traces no requests"):
        TracedChoices(0).check([TRACED])


@pytest.mark.parametrize("request_", [PLAIN, SILENT])
def test_others_are_never_refused(request_: ChoiceRequest) -> None:
    none = TracedChoices(0)
    none.check([request_] * 9)
    none.begin([request_] * 9)
    none.end([request_] * 9)
