"""DeepSpeed's checkpoints: ZeRO's flat partitions, a file for each rank, below the directory of a tag."""
