"""Linear layers of e4m3 weights whose activations are quantised to e4m3 as well (W8A8)."""
