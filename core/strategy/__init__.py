"""Strategies: how every parameter of a checkpoint is cut, stage by stage, and the files that say so."""
