"""Strategies: the layout of every parameter, stage by stage, and the files that hold them."""
