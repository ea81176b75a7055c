"""What routing by prefix is worth in virtual time, and what a decision costs."""
