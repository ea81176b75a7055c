"""Threads of one process that wait for one another."""
