"""LoRA adapters of the rows of a pass: rows are gathered by adapter, then shrunk and expanded by its matrices."""
