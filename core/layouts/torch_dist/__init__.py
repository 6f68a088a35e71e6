"""Megatron-Core's distributed checkpoints, `torch_dist`: those of PyTorch, with files and names of its own."""
