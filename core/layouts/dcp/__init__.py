"""PyTorch's Distributed Checkpoint (DCP): `.distcp` files, and metadata that places their shards."""
