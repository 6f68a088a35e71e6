"""Checkpoint files: what they hold, where its bytes are, and how such files are written."""
