"""What the swap waits for, and what the command says."""

from __future__ import annotations

from launcher.rollout.traffic_shift import progress_of, run
from slipstream.v1 import verify_pb2


def state(*drafters: tuple[int, str, int, float, int]) -> verify_pb2.GetStateResponse:
    return verify_pb2.GetStateResponse(
        drafters=[
            verify_pb2.DrafterState(
                epoch=epoch,
                proposer=proposer,
                requests=requests,
                share=share,
                catching_up=behind,
                address=f"at {epoch}",
            )
            for epoch, proposer, requests, share, behind in drafters
        ]
    )


def test_the_share_must_be_known_and_no_request_on_its_way() -> None:
    assert not progress_of(state(), 7, 1.0).done
    assert not progress_of(state((7, "p", 0, 0.1, 0)), 7, 1.0).applied
    moving = progress_of(state((3, "p", 4, 1.0, 1), (7, "p", 5, 0.3, 2)), 7, 0.3)
    assert (moving.applied, moving.moving, moving.done) == (True, 3, False)
    done = progress_of(state((3, "p", 4, 1.0, 0), (7, "p", 5, 0.3, 0)), 7, 0.3)
    assert (done.done, done.former) == (True, {"at 3": 4})


def test_draft_services_with_other_proposers_do_not_matter() -> None:
    facts = state((3, "other", 4, 1.0, 9), (7, "p", 5, 1.0, 0), (7, "q", 1, 1.0, 0), (5, "q", 2, 1.0, 0))
    assert progress_of(facts, 7, 1.0).former == {"at 5": 2}
    assert progress_of(facts, 7, 1.0).done


def test_a_service_that_does_not_answer_is_an_exit_status(capsys) -> None:
    assert run("127.0.0.1:1", "", share=1.0, seconds=1.0) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
