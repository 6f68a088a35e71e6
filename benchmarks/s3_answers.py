"""Answers what nginx does not know of S3: `python s3_answers.py SOCKET ROOT UPLOADS`.

nginx serves objects, which are the files below ROOT, and receives the bodies of requests into files. Their names come
here, so an upload costs a rename. The parts of a completed upload become one file when somebody wants to read it, or
by a POST to `/`: until then a list of them is the object, and no client waits for this machine to copy bytes.

Requests that wait (`GET /delay?SECONDS`) wait here, since nginx has no timer.

Etags are nginx's: the second of the last change, and the size. An object that is written again within a second becomes
a second newer, so that its etag changes. Signatures are not checked. Versions, ACLs, UploadPartCopy, bodies in chunks
that are signed each, and the older ListObjects are answered with 501.
"""

import asyncio
import itertools
import os
import shutil
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_MOST_KEYS = 1000
_COPY_BYTES = 2**30
"""The kernel copies no more than 2 GiB in a call."""


@dataclass(frozen=True)
class Request:
    """A request; names of its headers are in lower case.

    Attributes:
        body: the file into which nginx has received the body; None: there was none.
    """

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Path | None


@dataclass(frozen=True)
class Answer:
    """An answer; its body is XML."""

    status: int = 200
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class S3Error(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.answer = Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


@dataclass(frozen=True)
class Stored:
    """What is known of an object without reading it."""

    changed: int
    size: int

    @classmethod
    def of(cls, file: Path) -> "Stored":
        """As nginx sees a file."""
        status = file.stat()
        return cls(int(status.st_mtime), status.st_size)

    @property
    def etag(self) -> str:
        """As nginx computes it."""
        return f'"{self.changed:x}-{self.size:x}"'

    @property
    def elements(self) -> str:
        """What lists say of it."""
        return f"{self.last_modified}<ETag>{escape(self.etag)}</ETag><Size>{self.size}</Size>"

    @property
    def last_modified(self) -> str:
        """The element that says when it was changed."""
        return f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(self.changed))}</LastModified>"


@dataclass
class Composed:
    """An object that is the parts of a completed upload.

    Attributes:
        assembly: makes one file of them, once it has begun.
    """

    stored: Stored
    parts: Sequence[Path]
    assembly: asyncio.Task[None] | None = None


class Store:
    """Buckets and their objects."""

    def __init__(self, root: Path, uploads: Path) -> None:
        self._root = root
        self._uploads = uploads
        self._composed: dict[Path, Composed] = {}

    async def answer(self, request: Request) -> Answer:
        """Do what a request asks for."""
        try:
            match request:
                case Request(method="GET", bucket="delay", key=""):
                    await asyncio.sleep(float(next(iter(request.query))))
                    return Answer(204)
                case Request(method="POST", bucket=""):
                    await self._assemble_all()
                    return Answer(204)
            if not request.bucket or not (self._root / request.bucket).is_dir():
                raise S3Error(404, "NoSuchBucket")
            if not request.key:
                return self._answer_bucket(request)
            if "uploads" in request.query or "uploadId" in request.query:
                return self._answer_upload(request)
            return await self._answer_object(request)
        except S3Error as error:
            return error.answer

    def _answer_bucket(self, request: Request) -> Answer:
        match request.method:
            case "HEAD" | "PUT":
                return Answer()
            case "GET" if request.query.get("list-type") == "2":
                return self._list(request)
            case "GET" if "location" in request.query:
                return _xml("LocationConstraint", "")
            case "GET" if "uploads" in request.query:
                return self._list_uploads(request)
            case "POST" if "delete" in request.query:
                return self._delete_many(request)
        raise _not_implemented()

    async def _answer_object(self, request: Request) -> Answer:
        path = self._path(request)
        match request.method:
            case "GET" | "HEAD":  # of a file, nginx would have answered
                return await self._read_composed(request, path)
            case "DELETE":
                self._check_conditions(request, path)
                self._delete(path)
                return Answer(204)
            case "PUT":
                if source := request.headers.get("x-amz-copy-source"):
                    return await self._copy(request, unquote(source))
                self._check_conditions(request, path)
                return Answer(headers=(("ETag", self._publish(_received(request) or self._new_file(), path).etag),))
        raise _not_implemented()

    def _answer_upload(self, request: Request) -> Answer:
        if request.method == "POST" and "uploads" in request.query:
            return self._create_upload(request)
        upload = self._uploads / request.query["uploadId"]
        if not upload.is_dir():
            raise S3Error(404, "NoSuchUpload")
        match request.method:
            case "PUT" if "x-amz-copy-source" not in request.headers:
                part = upload / request.query["partNumber"]
                (_received(request) or self._new_file()).rename(part)
                return Answer(headers=(("ETag", Stored.of(part).etag),))
            case "POST":
                return self._complete(request, upload)
            case "GET":
                return _list_parts(request, upload)
            case "DELETE":
                shutil.rmtree(upload)
                return Answer(204)
        raise _not_implemented()

    def _path(self, request: Request) -> Path:
        if {"", ".", ".."} & set(request.key.split("/")):
            raise _not_implemented()  # no file can have such a name
        return self._root / request.bucket / request.key

    def _stored(self, path: Path) -> Stored | None:
        if composed := self._composed.get(path):
            return composed.stored
        return Stored.of(path) if path.is_file() else None

    def _check_conditions(self, request: Request, path: Path) -> None:
        stored = self._stored(path)
        if stored and request.headers.get("if-none-match") == "*":
            raise S3Error(412, "PreconditionFailed")
        if wanted := request.headers.get("if-match"):
            if not stored:
                raise S3Error(404, "NoSuchKey")
            if wanted.strip('"') != stored.etag.strip('"'):
                raise S3Error(412, "PreconditionFailed")

    def _next_change(self, path: Path) -> int:
        """The second of a change to an object, after that of the last one."""
        stored = self._stored(path)
        return max(int(time.time()), stored.changed + 1 if stored else 0)

    def _publish(self, file: Path, path: Path) -> Stored:
        """Make a file an object."""
        changed = self._next_change(path)
        self._forget_parts(path)
        os.utime(file, (changed, changed))
        path.parent.mkdir(parents=True, exist_ok=True)
        file.rename(path)
        return Stored.of(path)

    def _forget_parts(self, path: Path) -> None:
        if composed := self._composed.pop(path, None):
            shutil.rmtree(composed.parts[0].parent)

    def _delete(self, path: Path) -> None:
        self._forget_parts(path)
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
        with suppress(OSError):  # of a directory that holds something else
            for parent in itertools.takewhile(lambda parent: parent.parent != self._root, path.parents):
                parent.rmdir()

    def _delete_many(self, request: Request) -> Answer:
        keys = [_text(element, "Key") for element in _children(request, "Object")]
        for key in keys:
            self._delete(self._root / request.bucket / key)
        return _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys))

    async def _copy(self, request: Request, source: str) -> Answer:
        path, source_path = self._path(request), self._root / source.lstrip("/")
        await self._assemble(source_path)
        if not source_path.is_file():
            raise S3Error(404, "NoSuchKey")
        copied = self._new_file()
        await asyncio.to_thread(_append, [source_path], copied)
        self._check_conditions(request, path)
        stored = self._publish(copied, path)
        return _xml("CopyObjectResult", f"<ETag>{escape(stored.etag)}</ETag>{stored.last_modified}")

    def _new_file(self) -> Path:
        file = self._uploads / f"{uuid.uuid4().hex}.new"
        file.touch()
        return file

    def _create_upload(self, request: Request) -> Answer:
        name = uuid.uuid4().hex
        (self._uploads / name).mkdir()
        (self._uploads / name / "key").write_text(f"{request.bucket}/{request.key}")
        return _xml("InitiateMultipartUploadResult", _upload_elements(request, name))

    def _complete(self, request: Request, upload: Path) -> Answer:
        wanted = [(int(_text(part, "PartNumber")), _text(part, "ETag")) for part in _children(request, "Part")]
        if sorted(number for number, _ in wanted) != [number for number, _ in wanted]:
            raise S3Error(400, "InvalidPartOrder")
        parts = [upload / str(number) for number, _ in wanted]
        if not parts or not all(part.is_file() for part in parts):
            raise S3Error(400, "InvalidPart")
        sizes = [Stored.of(part) for part in parts]
        if [each.etag.strip('"') for each in sizes] != [etag.strip('"') for _, etag in wanted]:
            raise S3Error(400, "InvalidPart")
        path = self._path(request)
        self._check_conditions(request, path)
        stored = Stored(self._next_change(path), sum(each.size for each in sizes))
        self._delete(path)
        (upload / "key").unlink()  # from now on it is no upload
        self._composed[path] = Composed(stored, parts)
        elements = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
        return _xml("CompleteMultipartUploadResult", f"{elements}<ETag>{escape(stored.etag)}</ETag>")

    async def _read_composed(self, request: Request, path: Path) -> Answer:
        """Answer as nginx would, or let it: it sends the named location's file, heeding conditions and ranges."""
        composed = self._composed.get(path)
        if not composed:
            raise S3Error(404, "NoSuchKey")
        if request.method == "GET":
            await self._assemble(path)
            return Answer(headers=(("X-Accel-Redirect", "@file"),))
        self._check_conditions(request, path)
        stored = composed.stored
        changed = formatdate(stored.changed, usegmt=True)
        size = str(stored.size)
        return Answer(headers=(("ETag", stored.etag), ("Last-Modified", changed), ("Content-Length", size)))

    async def _assemble(self, path: Path) -> None:
        """See to it that an object is one file."""
        if composed := self._composed.get(path):
            composed.assembly = composed.assembly or asyncio.create_task(self._assemble_parts(path, composed))
            await composed.assembly

    async def _assemble_all(self) -> None:
        for path in list(self._composed):
            await self._assemble(path)

    async def _assemble_parts(self, path: Path, composed: Composed) -> None:
        first, *others = composed.parts
        await asyncio.to_thread(_append, others, first)
        if self._composed.get(path) is composed:  # else it was replaced meanwhile
            os.utime(first, (composed.stored.changed, composed.stored.changed))
            path.parent.mkdir(parents=True, exist_ok=True)
            first.rename(path)
            self._forget_parts(path)

    def _keys(self, bucket: str, prefix: str) -> list[str]:
        """All keys with a prefix, in S3's order."""
        root = self._root / bucket
        files = (Path(at, name) for at, _, names in os.walk(root / prefix.rpartition("/")[0]) for name in names)
        composed = (path for path in self._composed if path.is_relative_to(root))
        keys = {str(path.relative_to(root)) for path in itertools.chain(files, composed)}
        return sorted((key for key in keys if key.startswith(prefix)), key=os.fsencode)

    def _list(self, request: Request) -> Answer:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = min(int(query.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
        name: Callable[[str], str] = quote if query.get("encoding-type") == "url" else escape
        names = (_common_prefix(key, prefix, delimiter) or key for key in self._keys(request.bucket, prefix))
        found = [each for each in dict.fromkeys(names) if os.fsencode(each) > os.fsencode(after)]
        text = f"<Name>{request.bucket}</Name><Prefix>{name(prefix)}</Prefix><Delimiter>{name(delimiter)}</Delimiter>"
        text += f"<MaxKeys>{most}</MaxKeys><KeyCount>{len(found[:most])}</KeyCount>"
        text += f"<IsTruncated>{str(len(found) > most).lower()}</IsTruncated>"
        if "encoding-type" in query:
            text += "<EncodingType>url</EncodingType>"
        if len(found) > most:
            text += f"<NextContinuationToken>{escape(found[most - 1])}</NextContinuationToken>"
        for each in found[:most]:
            if stored := self._stored(self._root / request.bucket / each):
                text += f"<Contents><Key>{name(each)}</Key>{stored.elements}</Contents>"
            else:
                text += f"<CommonPrefixes><Prefix>{name(each)}</Prefix></CommonPrefixes>"
        return _xml("ListBucketResult", text)

    def _list_uploads(self, request: Request) -> Answer:
        of_bucket = f"{request.bucket}/"
        found = sorted((key.read_text(), key.parent) for key in self._uploads.glob("*/key"))
        text = "".join(
            f"<Upload><Key>{escape(key.removeprefix(of_bucket))}</Key><UploadId>{upload.name}</UploadId>"
            f"{Stored.of(upload / 'key').last_modified.replace('LastModified', 'Initiated')}</Upload>"
            for key, upload in found
            if key.startswith(of_bucket + request.query.get("prefix", ""))
        )
        return _xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{text}")


def _list_parts(request: Request, upload: Path) -> Answer:
    numbers = sorted(int(part.name) for part in upload.iterdir() if part.name != "key")
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber>{Stored.of(upload / str(number)).elements}</Part>"
        for number in numbers
    )
    text = f"{_upload_elements(request, upload.name)}<IsTruncated>false</IsTruncated>{parts}"
    return _xml("ListPartsResult", text)


def _received(request: Request) -> Path | None:
    """The file that becomes the object; nginx has received it as it was sent."""
    if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        raise _not_implemented()  # chunks with a signature each, of which the object is a part only
    return request.body


def _not_implemented() -> S3Error:
    return S3Error(501, "NotImplemented")


def _append(sources: Sequence[Path], target: Path) -> None:
    """Append files to another; the kernel copies."""
    with target.open("r+b") as out:
        out.seek(0, os.SEEK_END)
        for source in sources:
            with source.open("rb") as file:
                while os.sendfile(out.fileno(), file.fileno(), None, _COPY_BYTES):
                    pass
            if source.parent == target.parent:
                source.unlink()


def _common_prefix(key: str, prefix: str, delimiter: str) -> str:
    found = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: found + len(delimiter)] if found >= 0 else ""


def _upload_elements(request: Request, upload: str) -> str:
    return f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{upload}</UploadId>"


def _xml(name: str, content: str) -> Answer:
    return Answer(body=f'<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{name}>')


def _children(request: Request, name: str) -> Iterator[ElementTree.Element]:
    document = request.body.read_bytes() if request.body else b"<empty/>"
    return ElementTree.fromstring(document).iterfind(f"{{*}}{name}")


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


async def _serve(store: Store, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a connection's requests, which nginx sends one after another and without bodies."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            try:
                answer = await store.answer(_parse(head))
            except Exception:
                traceback.print_exc()
                answer = S3Error(500, "InternalError").answer
            writer.write(_response(answer, has_body=not head.startswith("HEAD ")))
            await writer.drain()
    writer.close()


def _parse(head: str) -> Request:
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = Path(headers["x-body-file"]) if headers.get("x-body-file") else None
    if (body.stat().st_size if body else 0) != int(headers.get("x-body-length") or 0):
        raise ValueError(f"nginx has not passed on the body of: {first}")
    return Request(method, bucket, key, dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)


def _response(answer: Answer, *, has_body: bool) -> bytes:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{answer.body}'.encode() if answer.body and has_body else b""
    headers = dict(answer.headers)
    if answer.status != 204:
        headers.setdefault("Content-Length", str(len(body)))
    if body:
        headers["Content-Type"] = "application/xml"
    lines = [f"HTTP/1.1 {answer.status} -", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _main(socket: str, root: str, uploads: str) -> None:
    store = Store(Path(root), Path(uploads))
    server = await asyncio.start_unix_server(lambda reader, writer: _serve(store, reader, writer), socket, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
