"""From text to tokens and from tokens to text."""
