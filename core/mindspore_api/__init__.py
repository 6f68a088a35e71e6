"""MindSpore's functions for checkpoints and strategies, without MindSpore; `reshard.mindspore` offers their names.

Where they differ from MindSpore's on purpose: docs/reference/mindspore.md.
"""
