"""A server under steady load for an hour: latencies, memory, descriptors."""
