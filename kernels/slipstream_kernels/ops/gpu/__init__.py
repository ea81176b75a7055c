"""Ops on an NVIDIA GPU: each a public function, its Triton kernel and a torch twin of the same signature.

Every function writes into tensors the caller owns, allocates nothing and never waits for the device, so that a pass can
be captured in a CUDA graph. A row's bits depend on its own inputs and absolute position alone.
"""
