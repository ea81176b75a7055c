"""What LoRA adapters add to linear layers."""
