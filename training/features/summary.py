"""What a run of features is about to do, or came to, for people."""

from __future__ import annotations

from pathlib import Path

from training.features.disk_space import size_text
from training.features.run import ExtractionPlan, ExtractionRun


def render_plan(plan: ExtractionPlan, folder: Path) -> str:
    """A few lines."""
    room = plan.room(folder)
    texts, boundaries = plan.texts, plan.settings.boundaries
    row = 2 * len(boundaries) * plan.config.hidden_size
    lines = [
        f"{len(texts)} sequences of {len(texts.token_ids)} tokens, {int(texts.produced.sum())} of them to learn from",
        *_omitted(texts.omitted),
        f"boundaries {', '.join(map(str, boundaries))} of {plan.config.hidden_size} numbers: {row} bytes a token",
        f"disk: {room}{'' if room.suffices else ': NOT ENOUGH'}",
    ]
    return "\n".join(lines)


def render(outcome: ExtractionRun) -> str:
    """A few lines."""
    index = outcome.index
    summary, shards = index["summary"], index["shards"]
    size = sum(shard["bytes"] for shard in shards)
    lines = [
        f"{summary['tokens']} tokens of {summary['sequences']} sequences, {size_text(size)} in {len(shards)} shards",
        *_omitted(summary["omitted"]),
    ]
    if outcome.seconds:
        row = 2 * len(index["boundaries"]) * index["hidden_size"]
        rate = outcome.tokens / outcome.seconds
        lines.append(
            f"this run: {outcome.tokens} tokens in {outcome.seconds:.0f} s, {rate:.0f} tokens/s, "
            f"{size_text(int(rate * row))}/s"
        )
    return "\n".join(lines)


def _omitted(counts: dict[str, int]) -> list[str]:
    if not counts:
        return []
    return ["sequences " + ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())]
