"""The connection to a verify service, and the transports that records take."""
