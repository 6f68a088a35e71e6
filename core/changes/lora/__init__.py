"""LoRA adapters: what their configurations say, and which of their tensors change which weights of a base. No I/O."""
