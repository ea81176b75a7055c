"""The target's own answers to prompts, token by token as it gave them."""
