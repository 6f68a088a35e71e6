"""What serves the flows."""
