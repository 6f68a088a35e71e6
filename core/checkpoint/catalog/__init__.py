"""The catalog of a checkpoint: the file of each rank and, from its headers, what that file holds."""
