"""Records that a source carries about itself, read before planning."""
