"""Whether products of e4m3 with e4m3 can be exact: an experiment, of which one scheme became `ops.gpu.fp8_linear`."""
