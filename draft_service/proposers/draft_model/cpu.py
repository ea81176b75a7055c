"""Draft-model proposer: a small causal language model with the target's vocabulary guesses ahead.

Speculative decoding with a draft model: Leviathan et al., arXiv 2211.17192. Trees: `tree_expansion`. At temperatures
above 0 the draft draws the request's own noise (`noise_coupling`), so that it picks the token the target will pick
wherever the two distributions agree.

A round is one pass over the tokens committed since the last round, for all sessions at once, then one pass a level
over the nodes that are expanded. Committed tokens live in pages, tree nodes in scratch slots that the next round
overwrites. A prompt longer than a chunk is prefilled between rounds, chunk by chunk.

With a token map (FR-Spec, arXiv 2502.14856) only its tokens are scored, which saves most of a small model's work where
the vocabulary is large. The other tokens are read as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from draft_service.heads.vocabulary import token_map
from draft_service.proposers.base import CPU, DraftRequest, Opening, ProposerOptions
from draft_service.proposers.checkpoint_folder import folder_and_config, refusing
from draft_service.proposers.cpu_common.kv_cache import DraftCache, DraftSession
from draft_service.proposers.cpu_common.noise_coupling import Coupling
from draft_service.proposers.cpu_common.rows import Branch, committed_rows, node_rows
from draft_service.proposers.draft_model.base import DraftModelBase, DraftModelConfig
from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.host_memory import available_bytes
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.page_pool import PagePool
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

_CHUNK = 128
"""Rows of a prefill pass unless configured: what a CPU computes in the time of a few verify steps."""


class DraftModelProposer(DraftModelBase):
    """Drafts with a causal language model on the CPU."""

    device = CPU

    def __init__(
        self,
        name: str,
        model: CausalLM,
        config: DraftModelConfig,
        tokenizer_fingerprint: str = "",
        scored: torch.Tensor | None = None,
    ) -> None:
        """scored: int64, the ids that `model` scores, in order; None: all."""
        super().__init__(name, model.config, config, tokenizer_fingerprint, model.config.max_context, scored)
        self._model = model
        self._entries = self._entries_below(self.vocab_size)
        self._chunk = config.chunk or _CHUNK
        num_pages = _num_pages(model, config)
        self._kv = model.new_cache(num_pages=num_pages, page_size=config.page_size, scratch_slots=config.scratch_slots)
        self._cache = DraftCache(PagePool(num_pages), config.page_size)
        self._coupling = Coupling(model.config.vocab_size, model.config.eos_token_ids)
        self._behind: dict[int, None] = {}

    def limit_vocabulary(self, size: int) -> None:
        self._coupling.limit_vocabulary(size)
        self._entries = self._entries_below(size)

    def open(self, session: int, opening: Opening) -> None:
        tokens = list(opening.token_ids)
        self._check_opening(tokens)
        self._cache.add(DraftSession(session, tokens, opening.prompt_length, opening.sampling))
        self._coupling.open(session, tokens, opening.prompt_length, opening.sampling)
        self._behind[session] = None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._check_commit(token_ids)
        self._cache[session].tokens.extend(token_ids)
        self._coupling.commit(session, token_ids)

    def close(self, session: int) -> None:
        self._behind.pop(session, None)
        self._cache.remove(session)
        self._coupling.close(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        trees: dict[int, TokenTree] = {}
        ready = self._ready(requests)
        for begin in range(0, len(ready), self.config.group):
            trees.update(self._round(ready[begin : begin + self.config.group]))
        return [trees.get(request.session) for request in requests]

    def advance(self) -> bool:
        """Prefill up to a chunk of rows of sessions that are behind, all but their last token."""
        batch: list[tuple[DraftSession, int]] = []
        room = self._chunk
        for number in list(self._behind):
            session = self._cache[number]
            rows = min(room, session.pending - 1)
            fits = len(session.tokens) <= self._max_context and self._cache.reserve(
                session, session.cached + rows, [s.number for s, _ in batch]
            )
            if rows > 0 and fits:
                batch.append((session, session.cached + rows))
                room -= rows
            if not fits or session.cached + rows >= len(session.tokens) - 1:
                del self._behind[number]
            if room == 0:
                break
        if batch:
            self._write(batch, with_logits=False)
        return bool(self._behind)

    def _ready(self, requests: Sequence[DraftRequest]) -> list[tuple[DraftRequest, DraftSession]]:
        """Those whose pending tokens fit into one chunk together, shortest first; the others fall behind."""
        ready: list[tuple[DraftRequest, DraftSession]] = []
        busy = [request.session for request in requests]
        room = self._chunk
        for request in sorted(requests, key=lambda request: self._cache[request.session].pending):
            session = self._cache[request.session]
            if len(session.tokens) > self._max_context:
                continue
            if session.pending > max(room, 1) or not self._cache.reserve(session, len(session.tokens), busy):
                self._behind[request.session] = None
                continue
            room -= session.pending
            self._behind.pop(request.session, None)
            ready.append((request, session))
        return ready

    def _round(self, ready: Sequence[tuple[DraftRequest, DraftSession]]) -> dict[int, TokenTree]:
        width = min(self.config.top_k, self._entries)
        logits = self._write([(session, len(session.tokens)) for _, session in ready], with_logits=True)
        branches = [
            Branch(
                session,
                Expansion(
                    width=width,
                    budget=min(request.max_nodes, self.max_nodes) - 1,
                    max_depth=min(request.max_depth, self.max_depth, self._max_context - len(session.tokens) + 1),
                ),
            )
            for request, session in ready
        ]
        growing = branches
        next_scratch = self._kv.scratch_slot(0)
        while growing:
            self._coupling.extend(logits, growing, width)
            growing = [branch for branch in growing if branch.expansion.frontier]
            if growing:
                rows, next_scratch = node_rows(growing, next_scratch)
                logits = self._logits(rows)
        return {branch.session.number: branch.expansion.tree() for branch in branches}

    def _write(self, batch: Sequence[tuple[DraftSession, int]], *, with_logits: bool) -> npt.NDArray[np.float32]:
        """Compute the keys and values of each session up to the length beside it; logits of each one's last row."""
        rows = committed_rows(batch, self.config.page_size, with_logits=with_logits)
        logits = self._logits(rows)
        for session, length in batch:
            session.cached = length
        return logits

    def _logits(self, rows: RowBatch) -> npt.NDArray[np.float32]:
        """float32 [rows with logits, vocabulary]; minus infinity for tokens that are not scored."""
        logits = self._model.forward(self._kv, rows)
        if self._scored is None:
            return logits
        spread = np.full((len(logits), self.vocab_size), -np.inf, np.float32)
        spread[:, self._scored.numpy()] = logits
        return spread


def _num_pages(model: CausalLM, config: DraftModelConfig) -> int:
    tokens = min(config.max_cached_tokens, config.max_cached_bytes // model.kv_bytes_per_token())
    pages = -(-max(tokens, model.config.max_context) // config.page_size)
    needed, room = pages * config.page_size * model.kv_bytes_per_token(), available_bytes()
    if needed > room:
        raise CheckpointError(
            f"config.json: max_position_embeddings is {model.config.max_context}: keys and values take "
            f"{needed >> 20} MiB, {room >> 20} MiB are available"
        )
    return pages


def create(options: ProposerOptions) -> DraftModelBase:
    """Factory. The argument is `DIR[:KEY=VALUE...]`, the keys being fields of DraftModelConfig or their aliases."""
    folder, config = folder_and_config(options, DraftModelConfig())
    with refusing(options):
        tokenizer = fingerprint(folder).tokenizer
        proposer = _placed(options, folder, config, tokenizer)
    proposer.warm_up()
    return proposer


def _placed(options: ProposerOptions, folder: Path, config: DraftModelConfig, tokenizer: str) -> DraftModelBase:
    """The proposer on the device that was chosen, else on the CPU. Raises CheckpointError where it does not fit."""
    scored = None if config.map_file is None else token_map(config.map_file, ModelConfig.from_folder(folder).vocab_size)
    if options.device != "cpu":
        from draft_service.proposers.draft_model.gpu import GpuDraftModelProposer
        from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError

        try:
            return GpuDraftModelProposer.load(options.name, folder, config, options.device, tokenizer, scored)
        except NoGpuFormError as error:
            _log.warning("%s drafts on the CPU: %s", options.name, error)
    model = CausalLM.load(folder, threads=options.threads, scored=scored)
    model.warm_up()
    return DraftModelProposer(options.name, model, config, tokenizer, scored)
