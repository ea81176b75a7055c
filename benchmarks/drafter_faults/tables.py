"""Results of benchmarks.drafter_faults as tables."""

from __future__ import annotations

from statistics import quantiles
from typing import Any

from benchmarks.lib.report import markdown_table

Content = dict[str, Any]
_HEADER = ("fault", "answers", "failed", "differing", "")


def text(content: Content) -> str:
    """Every fault's answers, the pauses about kills, and throughput beside a drafter that hangs."""
    faults, options = content["faults"], content["options"]
    parts = [markdown_table(_HEADER, _rows(faults))]
    if "kill" in faults:
        parts.append(_pauses(faults["kill"]))
    parts.append(
        f"{options['streams']} streams of {options['tokens']} tokens, transport {options['transport']}, verify on "
        f"{options['device']}, placement {options['placement']}."
    )
    return "\n\n".join(parts)


def kills_by_place(runs: dict[str, Content]) -> str:
    """Kills of the drafter at work, one row a place of the drafter; milliseconds and seconds."""
    header = (
        *("drafter", "answers", "failed", "differing", "kills", "accepted before each", "accepted again after s"),
        *("tokens/s without", "tokens/s with kills", "added stall p50 ms", "max ms", "bound ms"),
    )
    rows: list[list[object]] = []
    for place, content in runs.items():
        kill = content["faults"]["kill"]
        accepted, again, added = kill["accepted_between_kills"], kill["accepted_again_after_s"], kill["added_stall_ms"]
        rows.append(
            [
                *(place, kill["answers"], kill["failed"], kill["differing"], kill["kills"]),
                *(f"{min(accepted)} to {max(accepted)}", f"{min(again)} to {max(again)}"),
                *(kill["tokens_per_second"][kind] for kind in ("calm", "killed")),
                *(added["p50"], added["max"], kill["step_plus_deadline_ms"]),
            ]
        )
    return markdown_table(header, rows)


def by_place(runs: dict[str, Content]) -> str:
    """All other faults' answers, one row a fault and a place of the drafter."""
    rows: list[list[object]] = [
        [place, *row]
        for place, content in runs.items()
        for row in _rows({name: found for name, found in content["faults"].items() if name != "kill"})
    ]
    return markdown_table(("drafter", *_HEADER), rows)


def _rows(faults: Content) -> list[list[object]]:
    return [
        [name, found["answers"], found["failed"], found["differing"], _noted(name, found)]
        for name, found in faults.items()
    ]


def _noted(name: str, found: Content) -> str:
    """What else there is to say, in a line."""
    if name == "kill":
        accepted, drafters = found["accepted_between_kills"], found.get("drafters", 1)
        several = f" of {drafters} drafters" if drafters > 1 else ""
        return (
            f"{found['kills']} kills{several}; {min(accepted)} to {max(accepted)} tokens accepted before each; "
            f"deadline {found['deadline_ms']:g} ms"
        )
    if name == "hang":
        return (
            f"{_of_plain(found['of_plain_throughput'])} of plain throughput, "
            f"{found['of_plain_processor_time']['median']:.3f} of its processor time (medians of {found['pairs']} "
            f"pairs); "
            f"waits of each hang: {', '.join(map(str, found['waits_a_hang']))}"
        )
    if "attacks" in found:
        return f"{found['attacks']} attacks, {found['malformed']} thrown out, {found['accepted']} tokens accepted"
    if name == "swap":
        there = [found[way]["steps_until_there"] for way in ("to_random_guesses", "back")]
        return (
            f"acceptance is the new drafter's after {there[0]} steps, and after {there[1]} on the way back; deadline "
            f"{found['deadline_ms']:g} ms"
        )
    return f"verify {found['verify']}; longest pause {found['longest_pause_ms'] / 1000:.2f} s"


def _of_plain(ratios: Content) -> str:
    """The median, and within which figures half of the ratios are."""
    if len(ratios["each"]) < 2:
        return f"{ratios['median']:.3f}"
    low, _, high = quantiles(ratios["each"], n=4, method="inclusive")
    return f"{ratios['median']:.3f} ({low:.3f} to {high:.3f})"


def _pauses(kill: Content) -> str:
    """Milliseconds between two messages of a stream."""
    kinds = {
        "without faults": kill["pause_ms"]["calm"],
        "with kills": kill["pause_ms"]["killed"],
        "those that a kill fell into": kill["pause_at_kill_ms"],
        "added at a kill to the median stream": kill["added_stall_ms"],
    }
    names = list(kinds["without faults"])
    table = markdown_table(("pauses, ms", *names), [[kind, *each.values()] for kind, each in kinds.items()])
    return f"{table}\n\nA step and the deadline are {kill['step_plus_deadline_ms']:g} ms together."
