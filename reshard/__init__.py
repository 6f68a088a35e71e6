"""Converts distributed MindSpore checkpoints from one sharding strategy to another."""

__version__ = "0.1.0"
