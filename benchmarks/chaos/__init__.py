"""A server under kills, stops, hostile drafters and clients that leave."""
