"""What faults of drafters cost the requests that run meanwhile."""
