"""Writes the measured figures into the documentation.

    python -m benchmarks.figures

Each block of a page between `<!-- figures: NAME -->` and `<!-- end -->` is replaced by the tables of
benchmarks/results/NAME.json, so that no figure is copied by hand. A block whose file is missing says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.boundary import settings as boundary_settings
from benchmarks.boundary import tables as boundary_tables
from benchmarks.drafter_faults import tables as fault_tables
from benchmarks.lib.report import markdown_table
from benchmarks.lib.repository import ROOT
from benchmarks.proposers import tables as proposer_tables
from benchmarks.routing import tables as routing_tables
from benchmarks.serving import tables as serving_tables
from benchmarks.speculation import report
from benchmarks.trace_cost import tables as trace_cost_tables

RESULTS = ROOT / "benchmarks" / "results"
PAGES = tuple(ROOT / "docs" / name for name in ("exactness.md", "observability.md", "performance.md", "proposers.md"))
_BLOCK = re.compile(r"(<!-- figures: (?P<name>[a-z0-9_]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Content = dict[str, Any]


def exactness(content: Content) -> str:
    """Totals by part and proposer, and how often requests were preempted."""
    header = (
        "part: proposer",
        "requests",
        "tokens",
        "mismatches",
        "logprob mismatches",
        "drafted",
        "accepted",
        "tokens a step",
    )
    rows: list[list[object]] = [
        [
            *(name, c["requests"], c["tokens"], c["mismatches"]),
            c["logprob_mismatches"] if c["logprobs_compared"] else None,
            *(c["drafted"], c["accepted"], c["acceptance_length"]),
        ]
        for name, c in content["summary"].items()
    ]
    settings = content["settings"]
    preemptions = sum(content["preemptions"].values())
    note = (
        f"{settings['prompts']} prompts, {settings['crossed']} of them under every engine setting, "
        f"{settings['tokens']} new tokens each; {len(content['cells'])} cells; {preemptions} preemptions in the "
        f"settings that force them. {_machine(content)}"
    )
    return f"{markdown_table(header, rows)}\n\n{note}"


def exactness_adapters(content: Content) -> str:
    """The same with adapters, and how many answers these changed."""
    changed = ", ".join(f"{each['changed']} of {each['answers']}" for each in content["adapters"].values())
    return (
        f"{exactness(content)} Of the reference answers with each adapter others than the model's own are: {changed}."
    )


def distribution(content: Content) -> str:
    """The test's result."""
    rows: list[list[object]] = [
        ["seeds", content["seeds"]],
        ["seeds whose three tokens were all decided at tree nodes", content["at_nodes"]],
        ["drafted tokens, accepted", f"{content['drafted']}, {content['accepted']}"],
        ["chi-square, degrees of freedom", f"{content['statistic']:.1f}, {content['degrees']}"],
        ["p-value", f"{content['p_value']:.3f}"],
        ["runs of probability 0 seen", content["impossible"]],
    ]
    return markdown_table(("", "value"), rows)


def cpu_speed(content: Content) -> str:
    """Medians over rounds, and the ratios."""
    measured: dict[str, list[float]] = content["tokens_a_second"]
    rows: list[list[object]] = [
        [*name.split(" | "), sorted(figures)[len(figures) // 2], min(figures), max(figures)]
        for name, figures in measured.items()
    ]
    speeds = markdown_table(("engine", "way", "tokens/s (median)", "slowest round", "fastest round"), rows)
    ratios = markdown_table(
        ("ratio of", "ratio", "wanted at least"), [list(each.values()) for each in content["ratios"]]
    )
    settings = content["settings"]
    note = (
        f"{settings['prompts']} prompts of {settings['prompt_tokens']} tokens together, {settings['new_tokens']} new "
        f"tokens each, {settings['rounds']} rounds, {settings['threads']} threads. {_machine(content)}"
    )
    return f"{speeds}\n\n{ratios}\n\n{note}"


def gateway_cost(content: Content) -> str:
    """Processor time a streamed token and time added to the first, by API and way of sending."""
    header = (
        "API",
        "way",
        "tokens/s",
        "CPU us/token",
        "first token, ms",
        "95th percentile, ms",
        "added to the first, ms",
    )
    keys = ("api", "mode", "tokens_per_second", "cpu_us_per_token", "first_token_ms_median", "first_token_ms_p95")
    rows: list[list[object]] = [[*(row[key] for key in keys), row["added_ms_median"]] for row in content["rows"]]
    return f"{markdown_table(header, rows)}\n\n{content['streams']} streams at once."


def engine(content: Content) -> str:
    """Every section of every mode, then the modes beside one another."""
    parts: list[str] = []
    for mode, sections in content["figures"].items():
        for name, section in sections.items():
            settings = f"{section['weights']} weights" if "weights" in section else ""
            parts.append(f"*{mode}: {name}* ({settings}; {_gpu(section['machine'])})\n\n{_table(section['rows'])}")
    parts += [f"*{name}, modes compared*\n\n{_table(rows)}" for name, rows in content["compared"].items()]
    return "\n\n".join(parts)


def gpu_exactness(content: Content) -> str:
    """Totals of each part by proposer."""
    names = {
        "requests": "requests",
        "tokens": "tokens",
        "mismatches": "mismatches",
        "rows_compared": "rows compared",
        "row_mismatches": "row mismatches",
        "drafted": "drafted",
        "accepted": "accepted",
        "from_cache": "prompt tokens from the cache",
    }
    rows: list[list[object]] = []
    notes: list[str] = []
    for name, part in content["parts"].items():
        if "summary" in part:
            rows += [[f"{name}: {sums}", *(c[key] for key in names)] for sums, c in part["summary"].items()]
            notes.append(f"{name}: {part['prompts']} prompts of {part['prompt_tokens']} tokens together, "
                         f"{part['tokens']} new tokens each, {len(part['cells'])} cells.")  # fmt: skip
        else:
            notes.append(
                f"{name}: {part['equal_answers']} of {part['prompts']} greedy answers equal to the last token, "
                f"{part['equal_tokens']} of {part['tokens']} tokens before a first difference, "
                f"{part['unexplained']} differences without a near-tie."
            )
    machine = _gpu(content["machine"])
    return "\n\n".join(
        [markdown_table(("part: proposer", *names.values()), rows), " ".join(notes), f"Measured {machine}."]
    )


def tensor_parallel(content: Content) -> str:
    """Exactness within sizes, and steps of sizes beside one another."""
    names = ("requests", "tokens", "mismatches", "rows_compared", "row_mismatches", "drafted", "accepted", "from_cache")
    rows: list[list[object]] = [
        [f"size {size}, {name.removesuffix(' exactness')}: {sums}", *(c[key] for key in names)]
        for size, found in content["sizes"].items()
        for name, part in found.items()
        if name.endswith(" exactness")
        for sums, c in part.items()
    ]
    exact = markdown_table(("", *(name.replace("_", " ") for name in names)), rows)
    compared = content["compared"]
    equal = [
        f"{name}: {entry['equal']} of {entry['answers']} answers equal."
        for name, entry in compared.items()
        if isinstance(entry, dict)
    ]
    speeds = [f"*{name}*\n\n{_table(entry)}" for name, entry in compared.items() if isinstance(entry, list)]
    return "\n\n".join([exact, " ".join(equal), *speeds, f"Measured {_gpu(content['machine'])}."])


def boundary(content: Content) -> str:
    """Rounds and their split, of every place."""
    places = {name: place for name, place in content["places"].items() if place["rows"]}
    machines = "; ".join(
        f"{boundary_settings.PLACES[name]}: {_gpu(place['machine'])}" for name, place in places.items()
    )
    return f"{boundary_tables.text_of(content)}\n\nMeasured {machines}."


def boundary_behind(content: Content) -> str:
    """What lies between pass, draft and pass, in every place of a head that drafts behind passes."""
    machines = {_gpu(place["machine"]) for place in content["places"].values()}
    return f"{boundary_tables.behind_text(content)}\n\nMeasured {'; '.join(sorted(machines))}."


def speculation(content: Content) -> str:
    """Rounds, trees, categories and the sweep, and what they say of the goals."""
    return report.text(content["sections"], _gpu)


def drafter_faults(content: Content) -> str:
    """Every fault, on the transport and the place of its file."""
    facts = content["machine"]
    load = "" if "gpu" in facts else f" Other processes kept it busy (load average {facts['load_average']} at the end)."
    return f"{fault_tables.text(content)} Measured {_gpu(facts)}.{load}"


def drafter_faults_gpu(content: Content) -> str:
    """Kills with the drafter in several places about a GPU, and what else was done there."""
    runs, others = content["runs"], content["others"]
    options = next(iter(runs.values()))["options"]
    machines = "; ".join(f"{place}: {_gpu(run['machine'])}" for place, run in (*runs.items(), *others.items()))
    tables = f"{fault_tables.kills_by_place(runs)}\n\n{fault_tables.by_place(others)}"
    return (
        f"{tables}\n\n{options['streams']} streams of {options['tokens']} tokens, transport {options['transport']}, "
        f"deadline {options['deadline_ms']:g} ms. Measured {machines}."
    )


BLOCKS: dict[str, Callable[[Content], str]] = {
    "boundary": boundary,
    "boundary_behind": boundary_behind,
    "engine": engine,
    "gpu_exactness": gpu_exactness,
    "tensor_parallel_h200x2": tensor_parallel,
    "exactness": exactness,
    "exactness_adapters": exactness_adapters,
    "exactness_fp8": exactness,
    "exactness_fp8_kv": exactness,
    "exactness_mixture": exactness,
    "exactness_w4a16": exactness,
    "distribution": distribution,
    "acceptance": proposer_tables.acceptance,
    "proposers": proposer_tables.proposers,
    "proposers_eagle3": proposer_tables.lengths,
    "coupling": proposer_tables.coupling,
    "proposer_search": proposer_tables.search,
    "speculation": speculation,
    "serving": serving_tables.text,
    "cpu_speed": cpu_speed,
    "gateway_cost": gateway_cost,
    "trace_cost": trace_cost_tables.text,
    "routing": routing_tables.text,
    "drafter_faults_shm": drafter_faults,
    "drafter_faults_grpc": drafter_faults,
    "drafter_faults_gpu": drafter_faults_gpu,
}


def _table(rows: list[dict[str, Any]]) -> str:
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows]) if rows else "nothing"


def _gpu(facts: Content) -> str:
    device = f"{facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}" if "gpu" in facts else facts["processor"]
    return f"{facts['time']}, {device}, torch {facts['torch']}, source {facts['commit']}"


def _machine(content: Content) -> str:
    facts = content["machine"]
    return f"Measured {facts['time']} on {facts['cores']} cores of {facts['processor']}, torch {facts['torch']}."


def _block(match: re.Match[str]) -> str:
    name = match["name"]
    path = RESULTS / f"{name}.json"
    if path.exists():
        text = BLOCKS[name](json.loads(path.read_text(encoding="utf-8")))
    else:
        text = "Not measured in this checkout; the command above prints the table."
    return f"{match[1]}\n{text}\n\n{match[3]}"


def main() -> int:
    """Rewrite the blocks of all pages."""
    for page in PAGES:
        page.write_text(_BLOCK.sub(_block, page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
