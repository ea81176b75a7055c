"""A causal language model that drafts. `create` is its factory."""

from draft_service.proposers.draft_model.cpu import create

__all__ = ["create"]
