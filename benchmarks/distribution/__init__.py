"""The joint distribution of sampled tokens against the exact one."""
