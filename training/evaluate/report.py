"""Figures as a page for people: one HTML file that needs nothing else, and a few lines for the terminal."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from training.evaluate.run import ALL, FRESH
from training.evaluate.settings import Cell
from training.evaluate.simulated import Simulated

TEMPLATE: Final = "report.html.jinja"
FEW_TREES: Final = 0.99
"""With less of its steps with a tree, a cell tells of deadlines too, and not of the proposer alone."""


def render(result: Mapping[str, Any], simulated: Simulated | None, *, title: str) -> str:
    """The page. `result` as `training.evaluate.run` writes it."""
    from training.evaluate import plots

    drafted = [cell for cell in result["cells"] if cell["proposer"] and ALL in cell["categories"]]
    measured = {_label(cell): cell["categories"][ALL]["accepted_by_position"] for cell in drafted}
    rows = _rows(result)
    bars = {_label(cell): [_with_error(cell["categories"].get(row)) for row in rows] for cell in drafted}
    curves = dict(simulated.curves) if simulated else {}
    families = _families(curves)
    images = {
        "positions": _image(plots.position_plot(measured, simulated.by_position if simulated else [])),
        "categories": _image(plots.category_plot(rows, bars)) if rows else "",
        "curves": [_image(plots.curve_plot(curves, names, family)) for family, names in families.items()],
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(TEMPLATE).render(
        title=title,
        result=result,
        headlines=headlines(result, simulated),
        table=_table(result),
        positions=measured,
        simulated_positions=simulated.by_position if simulated else [],
        labels=[_label(cell) for cell in result["cells"]],
        images=images,
        warnings=list(warnings(result, simulated)),
    )


def headlines(result: Mapping[str, Any], simulated: Simulated | None) -> list[dict[str, str]]:
    """A line a cell, over all categories."""
    plain = {cell["temperature"]: _seconds(cell) for cell in result["cells"] if not cell["proposer"]}
    comparable = _first_chain(result)
    lines = []
    for cell in result["cells"]:
        figures = cell["categories"].get(ALL)
        if figures is None or figures["acceptance_length"] is None:
            continue
        own, base = _seconds(cell), plain.get(cell["temperature"])
        speed = f"{base / own:.2f}x" if cell["proposer"] and own and base else ""
        supposed = difference = ""
        if simulated and cell is comparable:
            length = simulated.to_depth(len(figures["accepted_by_position"]))
            supposed, difference = f"{length:.2f}", f"{figures['acceptance_length'] / length - 1:+.1%}"
        lines.append(
            {
                "cell": _label(cell),
                "length": _length(figures),
                "simulated": supposed,
                "difference": difference,
                "milliseconds": "" if own is None else f"{1000 * own:.2f}",
                "speed": speed,
                "trees": f"{figures['steps_with_tree']:.1%}" if cell["proposer"] else "",
            }
        )
    return lines


def _first_chain(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The greedy cell of the proposer named first, where its trees held no more tokens than the deepest path that was
    right.

    Training simulates chains only; other proposers may not be this head.
    """
    first = result["settings"]["proposers"][0]
    greedy: list[Mapping[str, Any]] = [
        cell for cell in result["cells"] if cell["proposer"] == first and cell["temperature"] == 0
    ]
    for cell in greedy:
        figures = cell["categories"].get(ALL, {"drafted_tokens": 0})
        if 0 < figures["drafted_tokens"] <= figures["tree_steps"] * len(figures["accepted_by_position"]):
            return cell
    return None


def warnings(result: Mapping[str, Any], simulated: Simulated | None = None) -> Iterator[str]:
    """What a reader of the figures must know."""
    if simulated and _first_chain(result) is None:
        yield (
            f"The simulated figure, {simulated.acceptance_length:.2f}, is that of a chain at temperature 0, which the "
            "proposer named first is not seen to have made: name one first that does, and the two can be compared."
        )
    for cell in result["cells"]:
        figures = cell["categories"].get(ALL)
        if cell["different_answers"]:
            first = next(each for each in result["cells"] if each["temperature"] == cell["temperature"])
            yield (
                f"{_label(cell)}: {cell['different_answers']} conversations were answered otherwise than with "
                f"{_label(first)}. An exact server does not do that; one in fast mode may."
            )
        if cell["proposer"] and figures is not None and (figures["steps_with_tree"] or 0.0) < FEW_TREES:
            yield (
                f"{_label(cell)}: {figures['steps_with_tree'] or 0.0:.1%} of the steps had a tree. Others had none to "
                "wait for, or did not wait: the proposer made none, was not attached, or missed the deadline."
            )
    if result["failures"]:
        yield f"{sum(result['failures'].values())} conversations were refused and count nowhere."


def render_text(result: Mapping[str, Any], simulated: Simulated | None) -> str:
    """A few lines for the terminal."""
    lines = []
    for line in headlines(result, simulated):
        text = f"{line['cell']}: {line['length']} tokens a verify step, {line['milliseconds']} ms a token"
        text += f" ({line['speed']} plain decoding)" if line["speed"] else ""
        text += f"; simulated {line['simulated']} ({line['difference']})" if line["simulated"] else ""
        lines.append(text)
    return "\n".join([*lines, *(f"note: {text}" for text in warnings(result, simulated))])


def _rows(result: Mapping[str, Any]) -> list[str]:
    """Categories in order, the sums last."""
    return list(dict.fromkeys(name for cell in result["cells"] for name in cell["categories"] if name != FRESH))


def _table(result: Mapping[str, Any]) -> list[tuple[str, int, list[str]]]:
    """Category, conversations, and the acceptance length of each cell."""
    first = result["cells"][0]["categories"]
    return [
        (name, figures["conversations"], [_length(cell["categories"].get(name)) for cell in result["cells"]])
        for name, figures in first.items()
    ]


def _length(figures: Mapping[str, Any] | None) -> str:
    if figures is None or figures["acceptance_length"] is None:
        return "-"
    error = figures["standard_error"]
    return f"{figures['acceptance_length']:.2f}" + ("" if error is None else f" ± {2 * error:.2f}")


def _with_error(figures: Mapping[str, Any] | None) -> tuple[float, float]:
    return (0.0, 0.0) if figures is None else (figures["acceptance_length"] or 0.0, figures["standard_error"] or 0.0)


def _seconds(cell: Mapping[str, Any]) -> float | None:
    figures = cell["categories"].get(ALL)
    return None if figures is None else figures["seconds_per_token"]


def _label(cell: Mapping[str, Any]) -> str:
    return Cell(cell["proposer"], cell["temperature"]).label


def _families(curves: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """Curves that share axes: those whose names speak of the same measure."""
    families: dict[str, list[str]] = {}
    for name in curves:
        if name != "step":
            kind = next((kind for kind in ("loss", "accuracy", "length") if kind in name), name)
            families.setdefault(kind, []).append(name)
    return families


def _image(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
