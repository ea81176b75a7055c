"""What a pass is launched with: graphs, streams, buffers on both sides, and the handle of its results."""
