"""How operators say what speculates: one typed configuration, read from the names that several engines use."""

PROPOSER_ENTRY_POINTS = "slipstream.proposers"
"""Group of the entry points by which other packages add proposers."""
