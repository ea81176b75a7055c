"""What a layer of experts computes on a CPU: which experts a row has, their rows, and the sum of what they say."""
