"""`slipstream chat`: a conversation in a terminal, coloured by how many drafted tokens each step accepted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from launcher.cli.step_tree import legend as step_tree_legend
from launcher.cli.step_tree import step_tree
from slipstream.client import Client, Stream
from slipstream.completion import Event, Grammar, Message, Options, SpeculationOptions
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.tls import Tls

COLOURS = ("default", "cyan", "green", "yellow", "magenta")
"""By accepted tokens of a step; the last stands for as many and more."""

QUIT = frozenset({"/quit", "/exit"})
RESET = "/reset"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What the command line asked for."""

    address: str
    system: str | None
    temperature: float
    top_p: float | None
    max_tokens: int
    seed: int | None
    proposer: str | None
    speculation: bool
    api_key: str
    tls: Tls | None = None
    tree: bool = False
    schema: str | None = None
    """A JSON Schema, as text, that answers fit."""

    def generation(self) -> Options:
        """Options of every answer."""
        options = Options(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            speculation=SpeculationOptions(enabled=self.speculation, proposer=self.proposer or "", trace=self.tree),
        )
        if self.top_p is not None:
            options["top_p"] = self.top_p
        if self.seed is not None:
            options["seed"] = self.seed
        if self.schema is not None:
            options["grammar"] = Grammar(json_schema=self.schema)
        return options


def chat(options: ChatOptions, message: str | None) -> int:
    """Answer one message, or talk until the end of input; returns the exit status."""
    console = Console(highlight=False)
    with Client(options.address, api_key=options.api_key, credentials=options.tls) as client:
        conversation = ChatSession(client, options, console)
        try:
            if message is not None:
                conversation.answer(message)
                return 0
            return _converse(conversation, console)
        except SlipstreamError as error:
            Console(stderr=True).print(f"[red]{type(error).__name__}:[/red] {error.message}", soft_wrap=True)
            return 1


class ChatSession:
    """The messages so far, and how an answer is asked for and shown."""

    def __init__(self, client: Client, options: ChatOptions, console: Console) -> None:
        self._client = client
        self._options = options
        self._console = console
        self._messages: list[Message] = []
        self.reset()

    @property
    def shows_trees(self) -> bool:
        """Whether answers come as trees of their steps."""
        return self._options.tree

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._options.system
        self._messages = [Message(role="system", content=system)] if system else []

    def answer(self, question: str) -> None:
        """Stream the answer to the terminal. Ctrl-C cancels it; then the question is forgotten too."""
        asked = [*self._messages, Message(role="user", content=question)]
        started = time.monotonic()
        events: list[Event] = []
        try:
            with self._client.stream(messages=asked, **self._options.generation()) as stream:
                self._show(stream, events)
        except KeyboardInterrupt:
            self._console.print("\n[dim]cancelled[/dim]")
            return
        text = "".join(event.text for event in events)
        self._messages = [*asked, Message(role="assistant", content=text)]
        if self._options.tree:
            self._console.print(text, markup=False, soft_wrap=True, end="")
        self._console.print(f"\n[dim]{summary(events, time.monotonic() - started)}[/dim]", soft_wrap=True)

    def _show(self, stream: Stream, events: list[Event]) -> None:
        for event in stream:
            events.append(event)
            if self._options.tree:
                self._console.print(step_tree(event, len(events)))
                continue
            self._console.print(Text(event.text, style=colour(event)), end="", soft_wrap=True)


def colour(event: Event) -> str:
    """The style of a step's text."""
    accepted = event.step.accepted if event.step else 0
    return COLOURS[min(accepted, len(COLOURS) - 1)]


def legend() -> Text:
    """Which colour stands for how many accepted tokens."""
    text = Text("accepted drafted tokens of a step: ", style="dim")
    for accepted, style in enumerate(COLOURS):
        more = "+" if accepted == len(COLOURS) - 1 else ""
        text.append(f"{accepted}{more} ", style=style)
    return text


def summary(events: list[Event], seconds: float) -> str:
    """Tokens, steps and speed of one answer."""
    usage = events[-1].usage if events else None
    if usage is None:
        return "no answer"
    speed = usage.completion_tokens / seconds if seconds > 0 else 0.0
    return (
        f"{usage.completion_tokens} tokens in {usage.verify_steps} steps "
        f"({usage.acceptance_length:.2f} tokens a step), {speed:.0f} tokens/s, seed {events[0].seed}"
    )


def _converse(conversation: ChatSession, console: Console) -> int:
    console.print(step_tree_legend() if conversation.shows_trees else legend())
    console.print(f"[dim]{RESET} starts over, /quit or Ctrl-D ends[/dim]")
    while True:
        try:
            question = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        if question in QUIT:
            return 0
        if question == RESET:
            conversation.reset()
        elif question:
            conversation.answer(question)
