"""MindSpore's functions for checkpoints and strategies, without MindSpore; `reshard.mindspore` offers their names."""
