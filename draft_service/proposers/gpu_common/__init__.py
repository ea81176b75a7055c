"""What proposers with networks share on a GPU."""
