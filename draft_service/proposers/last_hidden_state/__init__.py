"""Medusa heads and MLP speculators, which draft from the target's last hidden state."""
