"""Suffix decoding. `create` is its factory."""

from draft_service.proposers.suffix.suffix import create

__all__ = ["create"]
