"""The catalog of a checkpoint: the file of each rank and, from its headers, the file's contents."""
