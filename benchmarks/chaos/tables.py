"""The figures of a storm as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.lib.report import markdown_table

Facts = dict[str, Any]


def text(facts: Facts) -> str:
    """Requests, what was done to the server, pauses, and what each process holds."""
    return "\n\n".join((_requests(facts), _events(facts), _pauses(facts), _processes(facts)))


def _requests(facts: Facts) -> str:
    asked, goodput = facts["requests"], facts["goodput"]
    errors = ", ".join(f"{count} {code}" for code, count in asked["errors"].items()) or "none"
    rows: list[tuple[str, object]] = [
        ("requests", asked["asked"]),
        ("answered whole", asked["answered"]),
        ("differing", asked["differing"]),
        ("left by their clients", asked["left"]),
        ("errors", errors),
        ("of them not allowed", asked["not_allowed"]),
        ("of them without Retry-After", asked["without_retry_after"]),
        ("broken off with the gateway", asked["broken_off_with_the_gateway"]),
        ("longest time without progress, s", asked["longest_silence_s"]),
        (f"longer than {asked['silence_bound_s']:g} s", asked["late"]),
        ("verify up, s", f"{goodput['verify_up_seconds']:g} of {goodput['seconds']:g}"),
        (
            "tokens/s while verify was up; calm",
            f"{goodput['tokens_per_second_up']}; {goodput['tokens_per_second_calm']}",
        ),
        ("part of calm throughput", goodput["of_calm"]),
        ("killer requests ended as", ", ".join(f"{n} {code}" for code, n in facts["killers"].items()) or "none asked"),
        ("left behind", sum(facts["left_behind"].values())),
        ("tracebacks in logs", sum(facts["tracebacks"].values())),
    ]
    return markdown_table(("what", "figure"), rows)


def _events(facts: Facts) -> str:
    rows = sorted(facts["events"]["counts"].items())
    return markdown_table(("event", "times"), rows)


def _pauses(facts: Facts) -> str:
    kinds = {"between any two messages": "all", "where verify was lost": "at_losses_of_verify"}
    found = {kind: facts["pauses_ms"][name] for kind, name in kinds.items() if facts["pauses_ms"][name]}
    names = list(next(iter(found.values()), {"p50": 0.0}))
    return markdown_table(("pauses, ms", *names), [[kind, *each.values()] for kind, each in found.items()])


def _processes(facts: Facts) -> str:
    rows: list[list[object]] = []
    for name, found in facts["processes"].items():
        pairs = (f"{before} to {after}" for before, after in (found["rss_mib"], found["descriptors"], found["threads"]))
        rows.append([name, "yes" if found["same_process"] else "no", *pairs, found["rss_grown_in_second_half_mib"]])
    header = ("process", "lived through", "RSS MiB", "descriptors", "threads", "MiB grown in second half")
    return markdown_table(header, rows)
