"""One operation a file: a public function on arrays, its CPU kernel, and its reference in torch.

Kernels are functions of one row's inputs and its absolute position. The functions named `*_task` do one task of a
phase (see `slipstream_kernels.jit.threads`) and take addresses; the public functions take arrays and call them.
"""
