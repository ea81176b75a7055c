"""A server beside thousands of sockets that say nothing."""
