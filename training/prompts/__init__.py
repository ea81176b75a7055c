"""From recorded traffic to clean prompts: personal data and near-duplicates out, filtered, split by hash."""
