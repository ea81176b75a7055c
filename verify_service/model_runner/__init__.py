"""Rows in, accepted tokens out, for each kind of device."""
