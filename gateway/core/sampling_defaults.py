"""The model's own sampling parameters, in place of the server's where a request states none."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.core.limits import check_ranges
from gateway.core.request import Sampling, VerifyInfo
from slipstream.generation_config import NONE, SamplingDefaults, config_file, sampling_defaults
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError

_log = logging.getLogger(__name__)


def read_defaults(model: Path, source: str) -> SamplingDefaults:
    """What `source`, as of `config_file`, says of the model in a folder, and a line of the log where it says anything.

    FailedPreconditionError, naming file and field, for what no request could ask for.
    """
    try:
        file = config_file(model, source)
    except FailedPreconditionError as error:
        raise FailedPreconditionError(f"--generation-config: {error.message}") from error
    defaults = sampling_defaults(file)
    given = defaults.given()
    try:
        check_ranges(Sampling(**given))  # type: ignore[arg-type]  # by their names
    except InvalidArgumentError as error:
        name = "max_new_tokens" if error.field == "max_tokens" else error.field
        message = error.message.removeprefix(error.field)
        raise FailedPreconditionError(f"{file}: {name}{message}; --generation-config {NONE} leaves it out") from error
    if given:
        listed = ", ".join(f"{name}={value:g}" for name, value in given.items())
        _log.info("requests that say nothing else are sampled with %s (%s)", listed, file)
    return defaults


def completed(given: Sampling, defaults: SamplingDefaults, prompt_tokens: int, info: VerifyInfo) -> Sampling:
    """`given` with the defaults where it says nothing. What it says, if only that a filter is off, stands.

    A default for the longest output gives way to the room that the prompt leaves, and to what the request wants at
    least.
    """
    values: dict[str, Any] = {name: value for name, value in defaults.given().items() if getattr(given, name) is None}
    if "max_tokens" in values:
        room = info.max_context - prompt_tokens
        values["max_tokens"] = max(1, given.min_tokens or 0, min(values["max_tokens"], room))
    return replace(given, **values) if values else given
