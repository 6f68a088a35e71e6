"""A small training checkpoint to try reshard on; not part of the installed package."""
