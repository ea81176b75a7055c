"""Models on GPUs: weights, passes as CUDA graphs, and several GPUs as one."""
