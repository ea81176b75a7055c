"""Spans of requests: what services say of them, their names, and OpenTelemetry behind it where that is installed."""
