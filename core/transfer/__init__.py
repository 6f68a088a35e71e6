"""Carrying bytes of checkpoints from file to file."""
