"""What spans of OpenTelemetry and traces of speculation cost."""
