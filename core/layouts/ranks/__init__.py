"""MindSpore's checkpoints of ranks: a folder or a file for each rank, cut by a strategy that lies elsewhere."""
