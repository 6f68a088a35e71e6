"""File formats: `.ckpt`, `.safetensors`, their checksums, and the indexes of unified checkpoints."""
