"""The HTTP server around the OpenAI API."""
