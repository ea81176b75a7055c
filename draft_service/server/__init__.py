"""The process: its life, its administration API and its metrics."""
