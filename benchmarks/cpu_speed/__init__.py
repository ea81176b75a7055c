"""Speed on a CPU beside Hugging Face transformers."""
