"""Load on a running server: TTFT, TPOT and throughput against concurrency, over HTTP and over gRPC."""
