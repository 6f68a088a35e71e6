"""Tensors in torch's archives: where their bytes are, and everything that is refused."""

import struct
import zipfile
import zlib
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.model import StridedContent
from reshard.core.files.torch_views import StoredTensor
from reshard.core.files.torch_zip import check_crcs, read_stored_tensors
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.slices import Extent
from tests.support.dcp import Opcodes, archive, saved_tensor, tensor_pickle

DATA = bytes(range(48))
BEFORE = b"PK\x05\x06 what another tensor left"


def stored(path: Path, *archives: bytes) -> list[StoredTensor]:
    """The tensors of a file with these archives, with other bytes before and between them."""
    places, content = [], b""
    for each in archives:
        content += BEFORE
        places.append(Extent(len(content), len(each)))
        content += each
    path.write_bytes(content + BEFORE)
    return read_stored_tensors(open_source(parse_url(str(path))), places)


def records(pickled: bytes = b"", **changed: bytes) -> dict[str, bytes]:
    pickled = pickled or tensor_pickle("FloatStorage", 12, (3, 4), (4, 1))
    return {"data.pkl": pickled, "byteorder": b"little", "data/0": DATA, "version": b"3\n"} | changed


def refusal(path: Path, data: bytes) -> str:
    with pytest.raises(CheckpointError) as refused:
        stored(path, data)
    assert str(refused.value).startswith(f"{path}: the archive at byte {len(BEFORE)}: ")
    return str(refused.value)


def test_a_tensor_in_c_order_is_an_extent(tmp_path: Path) -> None:
    path = tmp_path / "file"
    one, other = stored(path, archive(records()), saved_tensor(DATA, "BFloat16Storage", 2, (5, 2), (2, 1), 3))
    assert (one.dtype.name, one.shape, one.strided) == ("Float32", (3, 4), None)
    assert (other.dtype.name, other.shape, other.strided) == ("BFloat16", (5, 2), None)
    content = path.read_bytes()
    for tensor, expected in ((one, DATA), (other, DATA[6:26])):
        assert tensor.extent is not None
        assert content[tensor.extent.offset :][: tensor.extent.length] == expected


@pytest.mark.parametrize(
    ("shape", "strides"), [((4, 3), (1, 4)), ((2, 3), (1, 4)), ((5, 3), (0, 1)), ((2, 2, 3), (3, 6, 1)), ((3,), (4,))]
)
def test_other_strides_are_told(tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    path = tmp_path / "file"
    [tensor] = stored(path, saved_tensor(DATA, "IntStorage", 4, shape, strides))
    start = path.read_bytes().index(DATA)
    assert tensor.extent is None
    assert tensor.strided == StridedContent(start, tuple(4 * stride for stride in strides))


def test_strides_of_axes_with_one_element_mean_nothing(tmp_path: Path) -> None:
    [tensor] = stored(tmp_path / "file", saved_tensor(DATA, "FloatStorage", 4, (1, 12, 1), (7, 1, 99)))
    assert tensor.extent is not None


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    scalar, empty = stored(
        tmp_path / "file",
        saved_tensor(DATA[:8], "LongStorage", 8, (), ()),
        saved_tensor(b"", "HalfStorage", 2, (0, 3), (3, 1)),
    )
    assert scalar.extent is not None
    assert (scalar.shape, scalar.extent.length) == ((), 8)
    assert empty.extent is not None
    assert (empty.shape, empty.extent.length) == ((0, 3), 0)


def test_an_untyped_storage_has_its_dtype_in_the_tensor(tmp_path: Path) -> None:
    pickled = tensor_pickle("X", 48, (12,), (1,), tail=b"ctorch\nuint32\n")
    pickled = pickled.replace(b"_v2", b"_v3").replace(b"ctorch\nX\n", b"ctorch.storage\nUntypedStorage\n")
    [tensor] = stored(tmp_path / "file", archive(records(pickled)))
    assert (tensor.dtype.name, tensor.shape) == ("UInt32", (12,))


def test_parameters_are_tensors(tmp_path: Path) -> None:
    inner = tensor_pickle("FloatStorage", 12, (3, 4), (4, 1))[2:-1]
    pickled = b"\x80\x02ctorch._utils\n_rebuild_parameter\n(" + inner + b"\x88ccollections\nOrderedDict\n)RtR."
    [tensor] = stored(tmp_path / "file", archive(records(pickled)))
    assert tensor.shape == (3, 4)


def test_bytes_that_are_not_the_values_are_marked(tmp_path: Path) -> None:
    tail = Opcodes().of(b"}").text("conj").of(b"\x88s").bytes()
    pickled = tensor_pickle("ComplexFloatStorage", 6, (6,), (1,), tail=tail)
    [tensor] = stored(tmp_path / "file", archive(records(pickled)))
    assert tensor.is_lazy


def test_headers_without_sizes_are_read_by_the_directory(tmp_path: Path) -> None:
    data = bytearray(archive(records()))
    with zipfile.ZipFile(_opened(tmp_path, bytes(data))) as file:
        for info in file.infolist():
            data[info.header_offset + 18 : info.header_offset + 26] = bytes(8)
    [tensor] = stored(tmp_path / "file", bytes(data))
    assert tensor.extent is not None
    assert tensor.extent.length == len(DATA)


def test_a_directory_of_64_bits(tmp_path: Path) -> None:
    plain = archive(records())
    count, length, offset = struct.unpack_from("<HLL", plain, len(plain) - 12)
    end_64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(plain) - 22, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    [tensor] = stored(tmp_path / "file", plain[:-22] + end_64 + locator + end)
    assert tensor.shape == (3, 4)


def test_sizes_of_64_bits(tmp_path: Path) -> None:
    data = archive(records())
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1) + 1)
    fields = list(struct.unpack_from("<4s6H3L5H2L", data, at))
    size, name_bytes, offset = fields[8], fields[10], fields[-1]
    extra = struct.pack("<2H3Q", 1, 24, size, size, offset)
    fields[8] = fields[9] = fields[-1] = 0xFFFFFFFF
    fields[11] = len(extra)
    name = data[at + 46 : at + 46 + name_bytes]
    changed = data[:at] + struct.pack("<4s6H3L5H2L", *fields) + name + extra + data[at + 46 + name_bytes :]
    length = struct.unpack_from("<L", changed, len(changed) - 10)[0]
    changed = changed[:-10] + struct.pack("<L", length + len(extra)) + changed[-6:]
    [tensor] = stored(tmp_path / "file", changed)
    assert tensor.shape == (3, 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"byteorder": b"big"}, "is of byte order 'big', reshard reads little"),
        ({"data/0": DATA[:-4]}, "its storage is said to have 48 bytes, it has 44"),
        ({"data.pkl": b"\x80\x02N."}, "its pickle describes no tensor"),
        ({"data.pkl": b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR."}, "wants 'os.system', which no checkpoint needs"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (4, 4), (4, 1))}, "its tensor ends after its storage of 48"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (3, 4), (4, 1), 1)}, "its tensor ends after its storage of 48"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (3,), (4, 1))}, "gives no place in the storage"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (-3,), (1,))}, "gives a shape or strides that are none"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (3,), (-1,))}, "gives a shape or strides that are none"),
        ({"data.pkl": tensor_pickle("FloatStorage", 12, (2**40, 2**40), (0, 0))}, "a shape that no file can hold"),
        ({"data.pkl": tensor_pickle("FloatStorage", -12, (3,), (1,))}, "describes a tensor without a storage"),
        ({"data.pkl": tensor_pickle("Size", 12, (3,), (1,))}, "wants 'torch.Size', which no checkpoint needs"),
        ({"data.pkl": b"N" * 70000}, "its record 'archive/data.pkl' has 70000 bytes"),
        ({"x/data.pkl": b"N."}, "has 2 records 'data.pkl': it is not what torch.save writes"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, changed: dict[str, bytes], message: str) -> None:
    assert message in refusal(tmp_path / "file", archive(records() | changed))


def test_missing_records_are_named(tmp_path: Path) -> None:
    for name, message in (("data/0", "has no record 'archive/data/0'"), ("data.pkl", "has 0 records 'data.pkl'")):
        left = {each: content for each, content in records().items() if each != name}
        assert message in refusal(tmp_path / "file", archive(left))


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    data = archive(records(), compression=zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted, which torch.save never does" in refusal(tmp_path / "file", data)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = archive(records())
    for length in range(0, len(data), 7):
        refusal(tmp_path / "file", data[:length])


def test_a_record_elsewhere_than_the_directory_says_is_refused(tmp_path: Path) -> None:
    data = bytearray(archive(records()))
    for at in (position for position in range(len(data)) if data.startswith(b"PK\x01\x02", position)):
        for offset in (1, len(data) - 30, 2**31):
            changed = bytearray(data)
            changed[at + 42 : at + 46] = offset.to_bytes(4, "little")
            if b"version" not in data[at + 46 : at + 70]:  # nobody asks for it
                refusal(tmp_path / "file", bytes(changed))


def _opened(tmp_path: Path, data: bytes) -> Path:
    (tmp_path / "zip").write_bytes(data)
    return tmp_path / "zip"


def test_records_that_are_read_whole_have_their_crc(tmp_path: Path) -> None:
    """Every byte of a pickle and of the byte order, one bit wrong."""
    data = archive(records())
    for content in (records()["data.pkl"], b"little"):
        start = data.index(content)
        for position in range(start, start + len(content)):
            changed = bytearray(data)
            changed[position] ^= 1
            message = refusal(tmp_path / "file", bytes(changed))
            assert "does not have its CRC-32: damaged" in message


@pytest.mark.parametrize("change", [1, -1, 4, 16, 48])
def test_a_wrong_length_of_a_local_header_is_noticed(tmp_path: Path, change: int) -> None:
    """It would move the data: other bytes of the file would be the tensor's."""
    pickled = tensor_pickle("FloatStorage", 12, (3, 4), (4, 1))
    data = bytearray(padded(records(pickled), extra_bytes=64))
    start = data.index(b"archive/data/0") - 30
    data[start + 28] += change
    message = refusal(tmp_path / "file", bytes(data))
    assert "its record 'archive/data/0' does not end where the next one begins: damaged" in message


def padded(contents: dict[str, bytes], extra_bytes: int) -> bytes:
    """An archive as torch aligns it: the data's header has an extra field."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in contents.items():
            info = zipfile.ZipInfo(f"archive/{name}")
            info.extra = struct.pack("<2sH", b"FB", extra_bytes - 4).ljust(extra_bytes, b"Z")
            file.writestr(info, content)
    return buffer.getvalue()


@pytest.mark.parametrize("layout", ["<4s3L", "<4sL2Q"])
def test_sizes_may_follow_a_record(tmp_path: Path, layout: str) -> None:
    descriptor = struct.pack(layout, b"PK\x07\x08", zlib.crc32(DATA), len(DATA), len(DATA))
    assert followed(tmp_path, descriptor).extent is not None
    for wrong in (descriptor[:-1], descriptor[:4] + b"\1" + descriptor[5:], bytes(len(descriptor)), descriptor * 2):
        with pytest.raises(CheckpointError, match="does not end where the next one begins"):
            followed(tmp_path, wrong)


def followed(tmp_path: Path, descriptor: bytes) -> StoredTensor:
    """The tensor of an archive whose data, its last record, are followed by these bytes."""
    contents = records()
    data = archive({name: contents[name] for name in ("data.pkl", "byteorder", "version", "data/0")})
    count, length, offset = struct.unpack_from("<HLL", data, len(data) - 12)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, length, offset + len(descriptor), 0)
    [tensor] = stored(tmp_path / "file", data[:offset] + descriptor + data[offset:-22] + end)
    return tensor


def test_crcs_of_contents_are_compared_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = stored(path, saved_tensor(DATA, "FloatStorage", 4, (3, 4), (1, 3)), archive(records()))
    crcs = {name: each.crc for name, each in zip("wv", tensors, strict=True) if each.crc}
    assert len(crcs) == 2
    advances: list[int] = []
    with closing(open_source(parse_url(str(path)))) as file:
        check_crcs(file, crcs, advances.append)
    assert sum(advances) == 2 * len(DATA)
    content = bytearray(path.read_bytes())
    start = content.index(DATA)
    content[start + 40] ^= 4
    path.write_bytes(content)
    with closing(open_source(parse_url(str(path)))) as file:
        with pytest.raises(CheckpointError, match=f"parameter 'w': its 48 bytes at {start} have the CRC-32 0x"):
            check_crcs(file, crcs, advances.append)
        check_crcs(file, {"v": crcs["v"]}, advances.append)


def test_a_crc_of_0_is_none(tmp_path: Path) -> None:
    """As torch writes after `set_crc32_options(False)`."""
    data = bytearray(archive(records()))
    with zipfile.ZipFile(BytesIO(data)) as file:
        offsets = [info.header_offset for info in file.infolist()]
    entries = [at for at in range(len(data)) if data.startswith(b"PK\x01\x02", at)]
    for at in [*(offset + 14 for offset in offsets), *(entry + 16 for entry in entries)]:
        data[at : at + 4] = bytes(4)
    [tensor] = stored(tmp_path / "file", bytes(data))
    assert tensor.crc is None


def test_the_stride_of_a_single_element_may_be_any_number(tmp_path: Path) -> None:
    [tensor] = stored(tmp_path / "file", saved_tensor(DATA, "IntStorage", 4, (4, 1, 3), (1, 2**62, 4)))
    assert tensor.strided is not None
    assert tensor.strided.strides == (4, 0, 16)
