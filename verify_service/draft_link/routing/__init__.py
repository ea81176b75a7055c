"""Who drafts for which request: commits and states out, replies in, and how long a step waits for them."""
