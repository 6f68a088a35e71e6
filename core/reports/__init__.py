"""What functions return and commands print: a report's content as blocks, and blocks as plain text and as HTML."""
