"""The one thread that owns all proposers: records in, trees out."""
