"""Linear layers whose weights lie in device memory in 8 or 4 bits an element, and give the bits of the decoded ones."""
