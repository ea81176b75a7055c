"""A model's files, of which nothing is believed before it is checked."""
