import pytest

from benchmarks.local_engine.figures import Bytes
from benchmarks.speculation.rounds import RoundSizes, TreeShape
from benchmarks.speculation.text import TextSizes, Timed


def timed(rounds, tokens, *, bare=0, said=(), context=100):
    return Timed(list(rounds), tokens, bare, [context] * len(said), [list(each) for each in said])


def test_figures_of_answers_one_after_another():
    plain = timed([0.004] * 30, 30, said=[[1, 2], [3, 4]])
    drafted = timed([0.005, 0.005, 0.005, 0.009], 12, bare=1, said=[[1, 2], [3, 5]])
    row = drafted.figures(plain, Bytes(weights=15_000_000_000, kv_per_token=10_000_000), 4_000_000_000)
    assert row["acceptance"] == 3.0
    assert row["rounds without a tree"] == 0.25
    assert row["round p50 ms"] == pytest.approx(5.0)
    assert row["tokens/s"] == pytest.approx(500)
    assert row["x plain"] == pytest.approx(2.0)
    # 15 GB of weights, 1 GB of keys and values, 4 GB of the head in 5 ms, of 24 GB that the memory could give.
    assert row["bandwidth use %"] == pytest.approx(100 * 20 / 24)
    assert (row["answers"], row["equal answers"]) == (2, 1)


def test_runs_add_up():
    both = timed([0.1], 2, said=[[1]])
    both.add(timed([0.2, 0.3], 4, bare=2, said=[[2], [3]]))
    assert (both.seconds, both.tokens, both.bare, both.said) == ([0.1, 0.2, 0.3], 6, 2, [[1], [2], [3]])
    assert both.speed == pytest.approx(10)


def test_shapes_are_written_as_in_other_engines():
    shape = TreeShape.parse("5/8/64")
    assert (shape.steps, shape.top_k, shape.rows, shape.text) == (5, 8, 64, "5/8/64")
    assert shape.arguments == "num_steps=5:topk=8:num_draft_tokens=64"


def test_loops_have_room_for_what_is_measured():
    shapes = [TreeShape(5, 1, 6), TreeShape(5, 8, 64)]
    rounds = RoundSizes().config(shapes, 1024, 512)
    assert rounds.max_context > 1024 + 6 * (40 + 60)
    assert (rounds.max_running, rounds.max_nodes, rounds.step_nodes) == (64, 64, 1024)
    assert rounds.num_pages * 16 >= 64 * rounds.max_context
    text = TextSizes().config([(1,) * 900, (2,) * 10], 64, 1024, 512)
    assert text.max_context > 900 + 96
    assert text.num_pages * 16 >= 64 * text.max_context
    assert text.feature_bytes >= 64 * 900 * 3 * 4096 * 2 // 2
