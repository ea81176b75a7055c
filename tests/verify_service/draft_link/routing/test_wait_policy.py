from types import SimpleNamespace

from verify_service.draft_link.circuit_breaker import MAX_TIMEOUTS, SILENCE, CircuitBreaker
from verify_service.draft_link.routing.wait_policy import all_unresponsive


def attachment(*, heard_at, busy=True):
    """One whose breaker opened by timeouts at 10.0; its slots hold a request where it is `busy`."""
    breaker = CircuitBreaker(last_message_at=9.9)
    for _ in range(MAX_TIMEOUTS):
        breaker.on_timeout(10.0)
    breaker.on_message(heard_at)
    return SimpleNamespace(circuit_breaker=breaker, slots=SimpleNamespace(busy=busy, taken_count=int(busy)))


def test_the_link_is_deaf_once_all_that_are_attached_hang():
    hung, slow = attachment(heard_at=9.95), attachment(heard_at=10.05)
    assert not all_unresponsive([], [], 20.0)
    assert not all_unresponsive([hung], [], 10.0 + SILENCE / 2)
    assert all_unresponsive([hung, hung], [], 10.0 + SILENCE)
    assert not all_unresponsive([hung, slow], [], 20.0)


def test_those_that_stand_by_without_a_request_take_nothing_in_either():
    hung, hung_idle = attachment(heard_at=9.95), attachment(heard_at=9.95, busy=False)
    idle = attachment(heard_at=10.05, busy=False)
    assert all_unresponsive([idle, hung], [], 20.0)
    assert not all_unresponsive([idle, hung_idle], [], 20.0)
    assert all_unresponsive([hung_idle], [], 20.0)


def test_one_that_has_yet_to_take_requests_over_counts_while_it_is_heard():
    hung, newcomer = attachment(heard_at=9.95), attachment(heard_at=19.5)
    assert not all_unresponsive([hung, newcomer], [newcomer], 20.0)
    assert all_unresponsive([hung, newcomer], [newcomer], 19.5 + SILENCE)
    assert not all_unresponsive([hung, newcomer], [], 19.5 + SILENCE), "a request is its own"
