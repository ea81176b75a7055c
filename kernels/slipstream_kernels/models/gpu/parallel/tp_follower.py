"""Ranks 1 and up of a shared model: they repeat on their parts what rank 0 runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.parallel.adapter_broadcast import AdapterMessage
from slipstream_kernels.models.gpu.parallel.tp_broadcast import LineChange, StepMessage
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup
from slipstream_kernels.models.gpu.ranks.rank_messages import RankMessages
from slipstream_kernels.models.rank_error import RankError

_log = logging.getLogger(__name__)


class _Launched:
    """How many of rank 0's passes have been launched here."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


def follow(model: GpuModel, group: RankGroup) -> None:
    """Repeat what rank 0 runs until it stops the followers. Raises RankError where rank 0 ends otherwise."""
    launched = _Launched()
    with _adapters_beside(model, group.apart, launched):
        while content := group.broadcast(None):
            _launch(model, StepMessage.from_bytes(content))
            launched.add()


def _launch(model: GpuModel, message: StepMessage) -> None:
    for line in message.lines:
        _set_line(model, line)
    for change in message.pages:
        model.set_pages(change.line, change.start, change.pages)
    try:
        model.launch(replace(message.plan, keep_logits=False))
    except ValueError as error:
        _log.warning("a pass was refused, by rank 0 too: %s", error)


def _set_line(model: GpuModel, line: LineChange) -> None:
    bias = None
    if line.bias_ids is not None and line.bias_values is not None:
        bias = list(zip(line.bias_ids.tolist(), line.bias_values.tolist(), strict=True))
    model.set_line(
        line.line,
        line.packed_params,
        prompt_ids=_list(line.prompt_ids),
        output_ids=_list(line.output_ids),
        bias=bias,
        end_ids=_list(line.end_ids),
        adapter=line.adapter,
    )


@contextmanager
def _adapters_beside(model: GpuModel, messages: RankMessages, launched: _Launched) -> Iterator[None]:
    """Take adapters in while passes go on. At the end waits for rank 0 to say that there are no more."""
    if not model.limits.max_adapters:
        yield
        return
    taking = threading.Thread(target=_take_adapters, args=(model, messages, launched), name="adapters", daemon=True)
    taking.start()
    yield
    taking.join()


def _take_adapters(model: GpuModel, messages: RankMessages, launched: _Launched) -> None:
    """Ends the process where an adapter cannot be had: rank 0, which waits for it, is told by that."""
    try:
        while content := messages.broadcast(None):
            message = AdapterMessage.from_bytes(content)
            launched.wait_for(message.launched)  # what read the slot before is queued, and the copy waits for it
            model.free_adapter(message.slot)
            model.write_adapter(message.slot, message.adapter)
            messages.wait_for_all()
    except RankError as error:  # passes end by it too
        _log.info("%s", error)
    except Exception:  # noqa: BLE001 - whatever it was, this rank's slot is not what rank 0 believes
        _log.critical("an adapter could not be taken in", exc_info=True)
        logging.shutdown()
        os._exit(1)


def _list(values: Int32 | None) -> list[int] | None:
    return None if values is None else values.tolist()
