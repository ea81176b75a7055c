"""What Prometheus is shown of the verify service."""
