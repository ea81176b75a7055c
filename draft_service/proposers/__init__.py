"""Proposers: the public interface (`base`) and the built-in ones."""
