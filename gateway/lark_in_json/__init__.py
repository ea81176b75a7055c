"""Lark grammars of texts that a model writes within a string of JSON: rewritten so that they match the string."""
