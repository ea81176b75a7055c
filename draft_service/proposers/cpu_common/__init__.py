"""What proposers with networks share on a CPU."""
