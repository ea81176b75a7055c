"""Everything on the device: ops, layers, models, pages and the token tree. Never imports gRPC."""
