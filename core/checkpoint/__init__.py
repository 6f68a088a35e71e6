"""Checkpoint files: their contents, where the bytes are, and how such files are written."""
