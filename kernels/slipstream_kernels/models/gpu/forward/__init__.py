"""The layers of a pass: weights, ops, attention, logits."""
