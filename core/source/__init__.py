"""A source, before it is planned: what it says of itself."""
