"""What the verify and the draft service say to one another, apart from the wire."""
