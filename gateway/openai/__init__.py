"""The OpenAI API's bodies: what is taken, and how answers are written."""
