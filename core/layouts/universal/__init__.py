"""DeepSpeed's universal checkpoints: a file for each tensor, which a training of any world size loads."""
