"""LoRA adapters as the library PEFT stores them."""
