"""Text that leaves the program: printable, without secrets, with options spelled as its reader knows them.

Knows nothing of the rest of the program, so that errors can use it.
"""
