"""The records of the exchange, their wire form, and where a drafter computes."""
