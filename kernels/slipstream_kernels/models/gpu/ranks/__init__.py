"""What each rank of tensor parallelism holds, and how ranks reach one another."""
