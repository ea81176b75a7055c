"""A request's place in one attachment: its state, the trees for it, the states it gets, and how good its trees are."""
