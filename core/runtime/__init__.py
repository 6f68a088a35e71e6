"""Operating-system concerns: opening local files, bounding memory, text encodings."""
