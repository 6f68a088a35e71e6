"""Checkpoint files: what is in them, where its bytes are, and how such files are written."""
