"""MTP proposer: layers that the target was trained with to predict further tokens draft from its last state.

Two layouts are known (`heads.mtp_names`): MiMo's, inside the target's checkpoint (MiMo-7B, arXiv 2505.07608), and
DeepSeek's NextN (arXiv 2412.19437, section 2.2), inside it or extracted to a folder of its own. A row takes the
target's state after its final norm and the embedding of the next token, as an EAGLE-1 head's does, and trees grow as in
`eagle`. Of several layers one is used a step, in turn; more steps than layers begin again with the first, fed with its
own kind of state, for which FastMTP (arXiv 2509.18362) trains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draft_service.heads.eagle import EagleHead
from draft_service.heads.mtp_loading import holds_a_model, load_mtp
from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.eagle.base import EagleBase, EagleConfig
from draft_service.proposers.eagle.cpu import create_with

_FEEDBACK = {"": None, "pre-norm": False, "post-norm": True}


@dataclass(frozen=True, slots=True)
class MtpConfig(EagleConfig):
    """As EagleConfig, by default a chain of three tokens.

    target: needed where the folder is not the target's own. feedback: whether layers take states before (pre-norm) or
    after (post-norm) the norm of the layer they come from; empty: as the layout has it, MiMo after, DeepSeek before.
    """

    max_depth: int = 3
    top_k: int = 1
    feedback: str = ""

    def __post_init__(self) -> None:
        EagleConfig.__post_init__(self)
        if self.feedback not in _FEEDBACK:
            raise ValueError(f"feedback is {self.feedback!r}, must be pre-norm or post-norm")


def create(options: ProposerOptions) -> EagleBase:
    """Factory. The argument is `DIR[:KEY=VALUE...]`; DIR may be the target's own folder."""
    return create_with(options, MtpConfig(), _load)


def _load(folder: Path, config: MtpConfig) -> tuple[EagleHead, Path | None]:
    target = config.target_folder or (folder if holds_a_model(folder) else None)
    return load_mtp(folder, target, config.map_file, post_norm=_FEEDBACK[config.feedback]), target
