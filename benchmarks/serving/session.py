"""One server under all loads: what is sent untimed before, what is timed, and how the answers compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving.client import ServerAddress
from benchmarks.serving.comparison import Comparison
from benchmarks.serving.crowd import Crowd, Played
from benchmarks.serving.forecast import promised
from benchmarks.serving.forms import Running
from benchmarks.serving.load import Closed, Load
from benchmarks.serving.measures import Bounds, measures
from benchmarks.serving.prompt_sets import PromptSet, bodies

SAME, ONCE, NONE = "same", "once", "none"
WARM = (SAME, ONCE, NONE)
UNTIMED, ALWAYS, NEVER = "untimed", "always", "never"
TOKEN_IDS = (UNTIMED, ALWAYS, NEVER)
WARM_CLIENTS = 16
"""At once, where every prompt is sent once before the timed load."""
DEFAULT, OFF = "default", "off"


@dataclass(frozen=True, slots=True)
class Budget:
    """What requests say of speculation. `speculation`: the field of their bodies; None: nothing is said."""

    name: str = DEFAULT
    speculation: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, text: str) -> Budget:
        """Of "default", "off", or ROWS/DEPTH: rows of a verify step a request, its root included, and longest path."""
        if text == DEFAULT:
            return cls()
        if text == OFF:
            return cls(OFF, {"enabled": False})
        rows, slash, depth = text.partition("/")
        if not (slash and rows.isdigit() and depth.isdigit()):
            raise ValueError(f"must be default, off or ROWS/DEPTH such as 16/5, got {text!r}")
        return cls(text, {"enabled": True, "max_nodes": int(rows), "max_depth": int(depth)})


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for every server that is measured. `prompts` by context."""

    prompts: Mapping[int, PromptSet]
    loads: Sequence[Load]
    tokens: int
    send: str
    warm: str
    token_ids: str
    bounds: Bounds
    more: Mapping[str, Any] = field(default_factory=dict)
    api_key: str = ""
    patience: float = 600.0


class Session:
    """Plays every load of the settings on one server after another, and compares all their answers."""

    def __init__(self, crowd: Crowd, settings: Settings, comparison: Comparison) -> None:
        self._crowd = crowd
        self._settings = settings
        self._comparison = comparison

    def cells(
        self, name: str, server: Running, budgets: Sequence[Budget], tell: Callable[[str], object] = lambda _: None
    ) -> Iterator[dict[str, Any]]:
        """A row of figures for each budget, context and load on the server, as soon as it is measured."""
        for context in self._settings.prompts:
            for budget in budgets:
                player = _Player(self._crowd, self._settings, server, context, budget)
                title = f"{name}, {budget.name}"
                differing = 0
                if self._settings.warm == ONCE:
                    tell(f"{title}: every prompt once")
                    differing = self._compare(title, context, player.once())
                for load in self._settings.loads:
                    tell(f"{title}: {load.name}")
                    if self._settings.warm == SAME:
                        untimed = player.play(load, timed=False) if isinstance(load, Closed) else player.once()
                        differing += self._compare(f"{title}, {load.name}, untimed", context, untimed)
                    before = server.forecast.sums()
                    played = player.play(load, timed=True)
                    figures = promised(before, server.forecast.sums())
                    differing += self._compare(f"{title}, {load.name}", context, played)
                    figures = measures(played, self._settings.bounds, load.seconds) | figures
                    key = {"form": name, "budget": budget.name, "context": context, "load": load.name}
                    yield key | {"kind": type(load).__name__.lower()} | figures | {"differing": differing}
                    differing = 0

    def _compare(self, cell: str, context: int, played: Played) -> int:
        return self._comparison.add(cell, context, played.answers)


@dataclass(frozen=True, slots=True)
class _Player:
    """Sends the prompts of one context with one budget."""

    crowd: Crowd
    settings: Settings
    server: Running
    context: int
    budget: Budget

    def once(self) -> Played:
        """Every prompt once, untimed."""
        return self.play(Closed(WARM_CLIENTS), timed=False)

    def play(self, load: Load, *, timed: bool) -> Played:
        settings = self.settings
        prompts = settings.prompts[self.context]
        ids = settings.token_ids == ALWAYS or (settings.token_ids == UNTIMED and not timed)
        target = ServerAddress.of(self.server.url, api_key=settings.api_key, patience=settings.patience)
        written = bodies(
            prompts.contents(settings.send),
            self.server.model,
            settings.tokens,
            token_ids=ids,
            speculation=self.budget.speculation,
            more=settings.more,
        )
        return self.crowd.play(target, load.plan(len(prompts)), written)
