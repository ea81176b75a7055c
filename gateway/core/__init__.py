"""What every part of the gateway speaks of: requests, their limits and their ids."""
