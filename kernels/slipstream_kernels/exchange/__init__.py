"""Memory that a verify service and a drafter share on one host, and the byte rings in it."""
