"""Folders of this repository that benchmarks use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DEMO_MODELS: Final = ROOT / "demo_models"
DEMO_MODEL: Final = DEMO_MODELS / "slipstream-demo"
DEMO_DRAFT_MODEL: Final = DEMO_MODELS / "slipstream-demo-draft"
DEMO_HEAD: Final = DEMO_MODELS / "slipstream-demo-eagle3"
