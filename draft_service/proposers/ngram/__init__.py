"""Prompt lookup. `create` is its factory."""

from draft_service.proposers.ngram.ngram import create

__all__ = ["create"]
