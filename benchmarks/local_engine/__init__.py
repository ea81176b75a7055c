"""The verify loop in the benchmark's own process, with models and drafters to measure it with."""
