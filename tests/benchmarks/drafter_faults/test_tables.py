from benchmarks.drafter_faults.tables import by_place, kills_by_place

KILL = {
    "answers": 70, "failed": 1, "differing": 2, "kills": 3, "accepted_between_kills": [900, 3, 20],
    "accepted_again_after_s": [0.25, 3.5, 0.5], "tokens_per_second": {"calm": 200.0, "killed": 150.0},
    "added_stall_ms": {"p50": 7.5, "max": 16.25}, "step_plus_deadline_ms": 27.0,
}  # fmt: skip


def test_a_place_has_a_row_with_what_its_kills_cost():
    lines = kills_by_place({"MPS": {"faults": {"kill": KILL}}, "a second GPU": {"faults": {"kill": KILL}}}).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:7] == ["MPS", "70", "1", "2", "3", "3 to 900", "0.25 to 3.5"]
    assert [float(cell) for cell in cells[7:]] == [200.0, 150.0, 7.5, 16.25, 27.0]
    assert len(lines) == 4 and lines[3].startswith("| a second GPU")


def test_other_faults_have_a_row_a_place():
    found = {"answers": 9, "failed": 0, "differing": 1, "verify": "lived on", "longest_pause_ms": 142.0}
    lines = by_place({"time slicing": {"faults": {"kill": KILL, "kernel": found}}}).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["time slicing", "kernel", "9", "0", "1", "verify lived on; longest pause 0.14 s"]
    assert len(lines) == 3
