"""Structured output: grammars are compiled, followed token by token, and drafted from."""
