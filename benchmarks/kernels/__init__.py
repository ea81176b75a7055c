"""Kernels of the GPU engine one by one: their results, their times, and the tuning of their tiles."""
