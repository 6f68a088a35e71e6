"""Copies the bytes of checkpoints from file to file."""
