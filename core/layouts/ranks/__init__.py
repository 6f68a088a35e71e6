"""Rank folders: a file for each rank, and strategy files beside them."""
