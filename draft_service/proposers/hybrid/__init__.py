"""Several proposers as one. `create` is its factory."""

from draft_service.proposers.hybrid.hybrid import create

__all__ = ["create"]
