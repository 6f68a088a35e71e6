"""What the reader and the writer of torch's archives share: the parts of a zip, and the names of storages' classes."""

import struct

LOCAL_START, ENTRY_START, END_START = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END_64_START, LOCATOR_START, DESCRIPTOR_START = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"

LOCAL = struct.Struct("<4s5H3L2H")
"""The header of a record."""
ENTRY = struct.Struct("<4s6H3L5H2L")
"""A record in the directory."""
END = struct.Struct("<4s4H2LH")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")

FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF
"""In place of a number that is elsewhere, in a field of 64 bits."""
WIDE_FIELD = 1
"""Kind of the extra field that has those numbers."""

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""torch's classes of storages and their dtypes; storages of other dtypes are untyped."""
