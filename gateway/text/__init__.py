"""Everything that reads request bodies and texts, in processes that may be killed."""
