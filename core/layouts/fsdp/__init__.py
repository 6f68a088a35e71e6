"""Checkpoints of one file for each rank of a training with PyTorch's FSDP, as verl saves them."""
