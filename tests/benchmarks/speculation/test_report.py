from benchmarks.speculation.report import goals, text

ROUNDS = [
    {"drafter": "plain", "batch": 1, "round p50 ms": 4.0, "x plain": 1.0},
    {"drafter": "chain", "batch": 1, "round p50 ms": 5.9, "x plain": 1.9},
    {"drafter": "tree", "batch": 1, "round p50 ms": 6.5, "x plain": 2.2},
    {"drafter": "tree, controller", "batch": 16, "round p50 ms": 11.0, "x plain": 1.4},
    {"drafter": "tree", "batch": 64, "round p50 ms": 40.0, "x plain": 0.5},
    {"drafter": "tree, controller", "batch": 64, "round p50 ms": 8.0, "x plain": 0.97},
]
CATEGORIES = [
    {"category": "qa", "bandwidth use %": 10.0, "x plain": 1.0},
    {"category": "all", "bandwidth use %": 66.0, "x plain": 2.1},
]
SWEEP = [
    {"concurrency": 64, "speculation": "off", "tokens/s": 1000.0},
    {"concurrency": 64, "speculation": "on", "tokens/s": 990.0},
]


def section(rows):
    return {"machine": {"gpu": "a GPU"}, "rows": rows}


def test_goals_are_judged_by_the_rows_that_they_are_about():
    found = {
        name: (value, met)
        for name, value, _, met in goals(
            {"rounds": section(ROUNDS), "categories": section(CATEGORIES), "concurrency": section(SWEEP)}
        )
    }
    assert found == {
        "round at batch 1, chain, ms": (5.9, "yes"),
        "round at batch 1, tree, ms": (6.5, "no"),
        "round at batch 16, tree, controller, ms": (11.0, "yes"),
        "throughput at batch 64, tree, controller, x plain": (0.97, "no"),
        "speculative bandwidth use at batch 1, %": (66.0, "yes"),
        "tokens/s at batch 1, x plain": (2.1, "no"),
        "throughput at concurrency 64, x plain": (0.99, "yes"),
    }
    assert list(goals({})) == []


def test_the_text_has_a_table_for_each_section_that_was_measured():
    shown = text({"rounds": section(ROUNDS), "concurrency": section(SWEEP)}, lambda facts: facts["gpu"])
    assert shown.count("(a GPU)") == 2
    assert "| tree, controller | 64" in shown
    assert "| throughput at concurrency 64, x plain" in shown
    assert "category" not in shown
