"""File formats: `.ckpt`, `.safetensors`, torch archives, encryption, checksums: bytes to an index of tensors."""
