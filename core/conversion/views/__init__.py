"""Pictures of plans: SVG and HTML."""
