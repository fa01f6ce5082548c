"""Values passed from one process to another as data: JSON followed by bytes.

Unpickling calls functions that the pickle names. Here, reading calls and imports nothing that the content names: it
builds Python's own values and instances of classes that the reader lists. Untrusted content is at worst rejected.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from json import dumps, loads
from typing import Any, BinaryIO

_SEQUENCES: dict[str, type[Any]] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_MAPPINGS: dict[str, type[Any]] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_PLAIN = (type(None), bool, int, float, str)

_BEGIN = b"gradcheck-accum data 1\n"
_LENGTH = 8
"""Bytes of a length prefix."""


class NotPortable(ValueError):
    """A value that cannot be serialized, or content that is not a serialized value; the message is one line."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A class that is not a dataclass: how to take its values apart, and how to rebuild them.

    ``parts`` may return anything that can be serialized, including bytes and memoryviews. A memoryview comes back as a
    bytearray.
    """

    kind: type[Any]
    parts: Callable[[Any], object]
    whole: Callable[[Any], Any]


class Portable:
    """Writes and reads values that consist of ``classes`` (dataclasses and enumerations), ``leaves``, and Python's own.

    Shared objects in a value (an event in a trace and in a record) are shared again when it is read.
    """

    def __init__(self, classes: Iterable[type[Any]], leaves: Iterable[Leaf] = ()) -> None:
        self._classes = {kind.__name__: kind for kind in classes}
        self._leaves = {leaf.kind.__name__: leaf for leaf in leaves}

    def dumps(self, value: object) -> bytes:
        """A value as bytes. Raises NotPortable."""
        return b"".join(self.pieces(value))

    def loads(self, content: bytes) -> Any:
        """The value that `dumps` was given. Raises NotPortable for content that it has not written."""
        return self.read(io.BytesIO(content))

    def read(self, file: BinaryIO) -> Any:
        """The value in a file that its `pieces` were written to. Raises NotPortable for any other content."""
        try:
            return _Reader(self._classes, self._leaves, file).value()
        except Exception as error:  # the content is untrusted
            why = " ".join(str(error).split()) or type(error).__name__
            raise NotPortable(f"not what gradcheck-accum writes ({why})") from None

    def pieces(self, value: object) -> list[bytes | memoryview]:
        """The bytes of a value in pieces, so that large ones need not be copied. Raises NotPortable."""
        writer = _Writer(self._classes, self._leaves)
        try:
            header = dumps(writer.plain(value), separators=(",", ":")).encode()
        except RecursionError:
            raise NotPortable("it is nested too deeply, or in itself") from None
        pieces: list[bytes | memoryview] = [_BEGIN, _number(len(header)), header]
        for blob in writer.blobs:
            pieces += [_number(blob.nbytes), blob]
        return pieces


def _number(value: int) -> bytes:
    return value.to_bytes(_LENGTH, "big")


class _Writer:
    """Converts a value to JSON: anything but a plain value becomes a list that starts with its kind."""

    def __init__(self, classes: dict[str, type[Any]], leaves: dict[str, Leaf]) -> None:
        self._classes = classes
        self._leaves = leaves
        self._numbers: dict[int, int] = {}
        """The numbers of the dataclass instances that have been written, by identity."""
        self.blobs: list[memoryview] = []

    def plain(self, value: Any) -> Any:
        kind = type(value)
        name = kind.__name__
        if kind in _PLAIN:
            return value
        if id(value) in self._numbers:
            return ["again", self._numbers[id(value)]]
        if _SEQUENCES.get(name) is kind:
            return [name, *map(self.plain, value)]
        if _MAPPINGS.get(name) is kind:
            return [name, *(self.plain(part) for item in value.items() for part in item)]
        if kind in (bytes, memoryview):
            self.blobs.append(memoryview(value).cast("B"))
            return [name, len(self.blobs) - 1]
        if self._classes.get(name) is kind:
            return self._instance(value)
        for leaf in self._leaves.values():
            if isinstance(value, leaf.kind):
                return [leaf.kind.__name__, self.plain(leaf.parts(value))]
        raise NotPortable(f"a {kind.__module__}.{kind.__qualname__} cannot be passed to another process")

    def _instance(self, value: Any) -> Any:
        name = type(value).__name__
        if isinstance(value, Enum):
            return [name, self.plain(value.value)]
        written = [name, *(self.plain(getattr(value, field.name)) for field in fields(value))]
        self._numbers[id(value)] = len(self._numbers)
        return written


class _Reader:
    """Rebuilds the value."""

    def __init__(self, classes: dict[str, type[Any]], leaves: dict[str, Leaf], file: BinaryIO) -> None:
        self._classes = classes
        self._leaves = leaves
        self._file = file
        self._instances: list[Any] = []
        self._blobs: list[bytearray] = []

    def value(self) -> Any:
        start = self._file.tell()
        self._left = self._file.seek(0, io.SEEK_END) - start
        self._file.seek(start)
        if self._bytes(len(_BEGIN)) != _BEGIN:
            raise ValueError("it begins otherwise")
        header = loads(self._bytes(self._count()))
        while self._left:
            self._blobs.append(self._bytes(self._count()))
        return self._whole(header)

    def _count(self) -> int:
        return int.from_bytes(self._bytes(_LENGTH), "big")

    def _bytes(self, count: int) -> bytearray:
        if count > self._left:
            raise ValueError("it ends too early")
        self._left -= count
        content = bytearray(count)
        if self._file.readinto(content) != count:  # type: ignore[attr-defined]
            raise ValueError("it ends too early")
        return content

    def _whole(self, written: Any) -> Any:
        if not isinstance(written, list):
            if isinstance(written, dict):
                raise ValueError("an object in its JSON")
            return written
        name, *parts = written
        if name == "again":
            return self._instances[_index(parts)]
        if name == "bytes":
            return bytes(self._blobs[_index(parts)])
        if name == "memoryview":
            return self._blobs[_index(parts)]
        if name in _SEQUENCES:
            return _SEQUENCES[name](map(self._whole, parts))
        if name in _MAPPINGS:
            whole = list(map(self._whole, parts))
            return _MAPPINGS[name](dict(zip(whole[::2], whole[1::2], strict=True)))
        if name in self._classes:
            return self._instance(self._classes[name], parts)
        (part,) = parts
        return self._leaves[name].whole(self._whole(part))

    def _instance(self, kind: type[Any], parts: Sequence[Any]) -> Any:
        if issubclass(kind, Enum):
            return kind(*map(self._whole, parts))
        if not is_dataclass(kind):
            raise ValueError(f"{kind.__name__} is no class of data")
        # Not by its constructor, which may do more than store its arguments.
        instance = object.__new__(kind)
        for field, part in zip(fields(kind), parts, strict=True):
            object.__setattr__(instance, field.name, self._whole(part))
        self._instances.append(instance)
        return instance


def _index(parts: Sequence[Any]) -> int:
    (index,) = parts
    if type(index) is not int or index < 0:
        raise ValueError("no such part")
    return index
