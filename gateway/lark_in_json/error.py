from __future__ import annotations


class LarkError(ValueError):
    """A definition that is no Lark grammar, or one that cannot be followed within JSON. The message says why, where."""
