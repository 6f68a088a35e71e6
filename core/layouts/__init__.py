"""How a checkpoint lies in a directory: one package a layout, one protocol, one registry."""
