"""Sessions whose keys and values lie in pages on a device: their lines, pages, tokens and rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draft_service.proposers.base import Sampling, SessionRefusedError
from draft_service.proposers.gpu_common.sampling_slots import is_filtered, is_penalised
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import PAGE_SIZE, DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.models.page_pool import OutOfPagesError, PagePool


@dataclass(slots=True, eq=False)
class PagedSession:
    """A request of a head that reads the target's states.

    begin: the position of its first row. commits: how often tokens were added. length: rows of its text that are
    computed. waiting: states of the next ones. pending: rows whose states wait. newest: of rows computed, up to the
    last, which is computed again where no other waits. is_full: it outgrew its pages or the longest context, and gets
    no more trees. is_filtered, is_penalised: as of its sampling.
    """

    number: int
    tokens: list[int]
    sampling: Sampling
    line: int
    begin: int
    commits: int = 0
    length: int = 0
    pages: list[int] = field(default_factory=list)
    waiting: deque[torch.Tensor] = field(default_factory=deque)
    pending: int = 0
    newest: torch.Tensor | None = None
    is_full: bool = False
    is_filtered: bool = field(init=False)
    is_penalised: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_filtered, self.is_penalised = is_filtered(self.sampling), is_penalised(self.sampling)

    @property
    def is_complete(self) -> bool:
        """Whether all states that the tokens allow have come, and some have."""
        return 0 < self.length + self.pending == len(self.tokens) - 1 - self.begin

    def commit(self, token_ids: Sequence[int]) -> None:
        """Add what a step of the target has decided."""
        self.tokens.extend(token_ids)
        self.commits += 1

    def add(self, states: torch.Tensor) -> None:
        """The next rows' states have come."""
        self.waiting.append(states)
        self.pending += states.shape[0]

    def compute(self, rows: int) -> list[torch.Tensor]:
        """The states of the next `rows` rows, at least one, which count as computed."""
        states = self._take(rows)
        self.newest = states[-1]
        self.length += rows
        return states

    def _take(self, rows: int) -> list[torch.Tensor]:
        """The states of the next `rows` rows, which wait no longer."""
        self.pending -= rows
        if not self.pending:
            taken = list(self.waiting)
            self.waiting.clear()
            return taken
        taken = []
        while rows:
            piece = self.waiting.popleft()
            size = piece.shape[0]
            if size > rows:
                self.waiting.appendleft(piece[rows:])
                piece, size = piece[:rows], rows
            taken.append(piece)
            rows -= size
        return taken


class PagedSessions:
    """All sessions of a proposer, by number."""

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._sessions: dict[int, PagedSession] = {}
        self._pool = PagePool(limits.num_pages)
        self._free_lines = list(range(limits.max_sessions - 1, -1, -1))

    def __getitem__(self, number: int) -> PagedSession:
        return self._sessions[number]

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, number: int, tokens: Sequence[int], sampling: Sampling, begin: int) -> PagedSession:
        """Raises SessionRefusedError where there is no room."""
        limits = self._limits
        if len(tokens) > limits.max_context:
            raise SessionRefusedError(f"{len(tokens)} tokens are more than max_context, {limits.max_context}")
        held = sum(len(other.tokens) for other in self._sessions.values())
        if held + len(tokens) > limits.max_tokens:
            raise SessionRefusedError(f"{held} tokens of other requests leave no room for {len(tokens)}")
        if not self._free_lines:
            raise SessionRefusedError(f"{limits.max_sessions} other requests are open, the most that can be")
        session = PagedSession(number, list(tokens), sampling, self._free_lines.pop(), begin)
        self._sessions[number] = session
        return session

    def remove(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._pool.release_all(session.pages)
            self._free_lines.append(session.line)

    def take_rows(
        self, draft: DraftRound, session: PagedSession, rows: int, max_nodes: int = 0, max_depth: int = 0
    ) -> tuple[RoundItem, list[torch.Tensor]] | None:
        """The session's next `rows` rows of text with their states; the last one again where rows is 0.

        They count as computed, and a tree within the limits hangs below the last. None where there is no room for them:
        the session is full then.
        """
        again = rows == 0
        first = session.length - again
        if not self._reserve(draft, session, first + rows + again):
            session.is_full = True
            session.waiting.clear()
            session.pending = 0
            return None
        if again:
            assert session.newest is not None
            states = [session.newest[-1:]]
        else:
            states = session.compute(rows)
        position = session.begin + first
        tokens = session.tokens[position + 1 : position + 1 + rows + again]
        return RoundItem(session.line, first, position, tokens, max_nodes, max_depth), states

    def lay_rows(
        self, draft: DraftRound, session: PagedSession, rows: int, max_nodes: int, max_depth: int
    ) -> RoundItem | None:
        """The session's next rows of text, of tokens that nobody knows yet; `rows` at most. None without room for them.

        They do not count as computed.
        """
        if not self._reserve(draft, session, session.length + rows):
            return None
        position = session.begin + session.length
        return RoundItem(session.line, session.length, position, (0,) * rows, max_nodes, max_depth)

    def _reserve(self, draft: DraftRound, session: PagedSession, length: int) -> bool:
        """Give the session pages for `length` rows."""
        if session.begin + length > self._limits.max_context:
            return False
        held = len(session.pages)
        if length > held * PAGE_SIZE:
            missing = -(-length // PAGE_SIZE) - held
            try:
                session.pages += self._pool.allocate(missing)
            except OutOfPagesError:
                return False
            draft.set_pages(session.line, held, session.pages[held:])
        return True
