"""The stages of training as commands: `slipstream train STAGE`."""

from __future__ import annotations

import os

from slipstream.commands import Commands
from training.answers.command import answers
from training.evaluate.command import evaluate
from training.export.command import export
from training.features.command import features
from training.fit.command import fit
from training.prompts.command import prompts
from training.recorded.command import recorded

app = Commands(
    name="slipstream train",
    help="From prompts to a drafter in service, stage by stage. Every stage goes on where it was interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # as those of `slipstream`
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def stages() -> None:
    """From prompts to a drafter in service, stage by stage. Every stage goes on where it was interrupted."""


app.command()(prompts)
app.command()(answers)
app.command()(recorded)
app.command()(features)
app.command()(fit)
app.command()(evaluate)
app.command()(export)


def main() -> None:
    """Entry point of `python -m training`."""
    app(prog_name=os.environ.get("SLIPSTREAM_TRAIN_NAME"))
