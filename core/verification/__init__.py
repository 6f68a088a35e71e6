"""Checks what was written, and compares checkpoints by the values they hold."""
