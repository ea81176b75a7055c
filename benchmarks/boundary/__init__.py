"""What a drafter beyond the process boundary costs."""
