"""Process life, and the gRPC edge for gateways."""
