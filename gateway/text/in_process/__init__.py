"""Requests whose reading is cheap whatever they say, read on the event loop: which ones, and why that is known."""
