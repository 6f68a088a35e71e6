"""The whole job and its relatives: convert, load, join, merge, and conversions on a schedule."""
