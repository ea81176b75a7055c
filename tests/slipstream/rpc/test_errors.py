"""The table of errors maps both ways."""

from __future__ import annotations

import pytest

from slipstream.rpc.errors import InternalError, InvalidArgumentError, SlipstreamError, codes_of, error_of


def kinds() -> list[type[SlipstreamError]]:
    return [kind for kind in SlipstreamError.__subclasses__() if kind is not SlipstreamError]


@pytest.mark.parametrize("kind", kinds())
def test_codes_lead_back_to_the_error(kind: type[SlipstreamError]) -> None:
    codes = codes_of(kind("why", field="where"))
    error = error_of(codes.status.value[0], "why", "where")
    assert type(error) is kind
    assert (error.message, error.field) == ("why", "where")
    assert 400 <= codes.http <= 599


def test_foreign_errors_are_internal() -> None:
    assert codes_of(ValueError("x")) == codes_of(InternalError("x"))
    assert type(error_of(2, "unknown")) is InternalError


def test_a_subclass_has_its_parents_codes() -> None:
    class SpecialError(InvalidArgumentError):
        pass

    assert codes_of(SpecialError("x")) == codes_of(InvalidArgumentError("x"))
