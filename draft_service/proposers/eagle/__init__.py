"""EAGLE, EAGLE-3 and MTP heads. `create` is the factory of EAGLE-1 and 2."""

from draft_service.proposers.eagle.cpu import create

__all__ = ["create"]
