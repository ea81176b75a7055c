"""A small model and its head at the tensor shapes of a large one."""
