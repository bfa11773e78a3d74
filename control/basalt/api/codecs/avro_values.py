"""The values of which bodies in binary Avro consist, by hand: `AvroCursor` reads them one after the other, `encode_X` writes one.

Stricter than Avro libraries on purpose: one spelling per number (no padded varints), counts that must fit into what is left of the body, block sizes that must be true,
and nothing after the end. The bodies are in `avro`. Format: docs/formats/avro-bodies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from basalt.api.bodies.messages import INT_MAX, LONG_MAX, Buffer, check_count
from basalt.errors import MalformedBodyError

VARINT_BYTES_MAX = 10  # 64 bits at 7 bits a byte
EVEN_ITEMS_MIN = (
    32  # that a block has where it is looked whether all its items are equally long; fewer are as soon read
)
LENGTH_TABLE_ITEMS = 4_096  # lengths whose encoding is kept at hand; longer payloads cost more to copy than to count
END_OF_ARRAY = b"\x00"  # a block count of zero
NO_TAG_HINT = "Send the bare binary record of the documented schema."
FOREIGN_STARTS = (
    (b"Obj\x01", "This is an Avro container file. " + NO_TAG_HINT),
    (b"\xc3\x01", "This has a single-object header. " + NO_TAG_HINT),
    (b"\x1f\x8b", "This is gzip: name it in Content-Encoding."),
    (b"\x28\xb5\x2f\xfd", "This is zstd: name it in Content-Encoding."),
    (b"{", "This looks like JSON: send it as application/json."),
)


class AvroCursor:
    """Reads one body from front to end. `field` in each method names, for errors, what is being read.

    Set `inside` to the entry that the fields belong to (`records[3]`), or to "" for fields of the body itself.
    Every method raises MalformedBodyError with the byte offset and what was expected there. Bytes come out as
    memoryview slices of the body: they stay valid, and keep the body alive, as long as someone holds them.
    """

    __slots__ = ("_body", "_position", "_size", "_view", "inside")

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body)
        # Indexing bytes is about twice as fast as indexing a memoryview, and every varint is indexed.
        self._body: bytes | memoryview = body if isinstance(body, bytes) else self._view
        self._size = len(self._view)
        self._position = 0
        self.inside = ""
        if self._size == 0:
            raise MalformedBodyError("the body is empty; expected binary Avro", hint=NO_TAG_HINT)

    def read_long(self, field: str, expected: str = "a long") -> int:
        """A zigzag varint of at most 64 bits."""
        body, start = self._body, self._position
        if start < self._size and (byte := body[start]) < 0x80:
            self._position = start + 1
            return (byte >> 1) ^ -(byte & 1)
        value = shift = 0
        for position in range(start, min(start + VARINT_BYTES_MAX, self._size)):
            byte = body[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise self._refusal(start, field, expected, "a number padded with a zero byte")
                if value >> 64:
                    raise self._refusal(start, field, expected, "a number of more than 64 bits")
                self._position = position + 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
        if self._size - start >= VARINT_BYTES_MAX:
            raise self._refusal(start, field, expected, f"a number of more than {VARINT_BYTES_MAX} bytes")
        raise self._refusal(start, field, expected, "the end of the body")

    def read_int(self, field: str) -> int:
        """A zigzag varint of at most 32 bits."""
        start = self._position
        value = self.read_long(field, "an int")
        if not -INT_MAX - 1 <= value <= INT_MAX:
            raise self._refusal(start, field, "an int", f"{value}, which needs more than 32 bits")
        return value

    def read_boolean(self, field: str) -> bool:
        """One byte, 0 or 1."""
        start = self._position
        if start >= self._size:
            raise self._refusal(start, field, "a boolean", "the end of the body")
        byte = self._body[start]
        if byte > 1:
            raise self._refusal(start, field, "a boolean (0 or 1)", f"the byte {byte}")
        self._position = start + 1
        return byte == 1

    def read_index(self, field: str, count: int, expected: str = "the index of a union branch") -> int:
        """The index of a union branch or of an enum symbol: 0 to count - 1."""
        start = self._position
        index = self.read_long(field, expected)
        if not 0 <= index < count:
            raise self._refusal(start, field, f"{expected}, 0 to {count - 1}", f"{index}")
        return index

    def read_bytes(self, field: str) -> memoryview:
        """A length and so many bytes, not copied."""
        start = self._position
        length = self.read_long(field, "a length")
        left = self._size - self._position
        if not 0 <= length <= left:
            raise self._refusal(start, field, f"a length of 0 to {left} (what is left of the body)", f"{length}")
        begin = self._position
        self._position = begin + length
        return self._view[begin : self._position]

    def read_string(self, field: str) -> str:
        """A length and so many bytes of UTF-8."""
        start = self._position
        try:
            return str(self.read_bytes(field), "utf-8")
        except UnicodeDecodeError:
            raise self._refusal(start, field, "UTF-8 text", "bytes that are not UTF-8") from None

    def read_optional_long(self, field: str) -> int | None:
        """The union [long, null]."""
        return self.read_long(field) if self.read_index(field, 2) == 0 else None

    def read_optional_bytes(self, field: str) -> memoryview | None:
        """The union [bytes, null], not copied."""
        return self.read_bytes(field) if self.read_index(field, 2) == 0 else None

    def read_blocks(self, field: str, *, item_bytes_min: int) -> Iterator[int]:
        """The item count of each block of an array; the caller reads that many items before it asks for the next.

        A count that cannot fit into what is left (each item has at least `item_bytes_min` bytes) is refused here, so
        a caller's loop is never longer than the body.
        """
        while True:
            start = self._position
            if start < self._size and self._body[start] == 0:  # the end of each array, and most have no more
                self._position = start + 1
                return
            count = self.read_long(field, "the count of a block")
            stop = None
            if count < 0:
                count = -count
                size_start = self._position
                size = self.read_long(field, "the size of a block")
                left = self._size - self._position
                if not 0 <= size <= left:
                    raise self._refusal(size_start, field, f"a block size of 0 to {left} (what is left)", f"{size}")
                stop = self._position + size
            if count * item_bytes_min > self._size - self._position:
                raise self._refusal(start, field, "a block count that fits into the rest of the body", f"{count}")
            yield count
            if stop is not None and self._position != stop:
                raise self._refusal(
                    self._position, field, f"the block to end at byte {stop}, as its size says", "another end"
                )

    def read_byte_strings(self, field: str, items_max: int, already: int = 0) -> list[memoryview]:
        """The type array<bytes>, not copied.

        TooLargeError, before any is read, when these and the `already` read ones are more than `items_max`.
        """
        items: list[memoryview] = []
        for count in self.read_blocks(field, item_bytes_min=1):
            check_count(already + len(items) + count, items_max, field)
            if count < EVEN_ITEMS_MIN or not self._append_even_byte_strings(items, count, field):
                self._append_byte_strings(items, count, field)
        return items

    def pass_empty_array(self) -> bool:
        """Read an array if it has no items. What most bodies leave empty costs next to nothing so."""
        empty = self._position < self._size and self._body[self._position] == 0
        self._position += empty
        return empty

    def expect_end(self) -> None:
        """Nothing may follow a body."""
        self.inside = ""
        if self._position != self._size:
            left = self._size - self._position
            raise self._refusal(self._position, None, "the end of the body", f"{left} bytes more")

    def _append_even_byte_strings(self, items: list[memoryview], count: int, field: str) -> bool:
        """Read a block whose items are all as long as the first one; False, and nothing is read, where they are not.

        Equally long items lie at equal distances: a slice for each byte of the lengths tells whether they are, and no Python
        code runs per item but that which cuts it out.
        """
        body, start = self._body, self._position
        length = len(self.read_bytes(f"{field}[{len(items)}]"))
        begin, distance = self._position - length, self._position - start
        stop = start + count * distance
        if stop > self._size or any(
            bytes(body[at:stop:distance]) != bytes(body[at : at + 1]) * count for at in range(start, begin)
        ):
            self._position = start
            return False
        source = self._view
        items += [source[at : at + length] for at in range(begin, begin + count * distance, distance)]
        self._position = stop
        return True

    def _append_byte_strings(self, items: list[memoryview], count: int, field: str) -> None:
        # The hot loop of publish: lengths of one and two bytes (up to 8 KiB) are read in line, all others,
        # and errors, by read_bytes. A slice past the end comes out short without an error, hence `size`.
        body, source, size, position = self._body, self._view, self._size, self._position
        append = items.append
        for _ in range(count):
            if position + 1 < size:
                length = body[position]
                begin = position + 1
                if length > 0x7F:
                    length = (length & 0x7F) | (body[begin] << 7)
                    begin += 1
                    if not 0x7F < length < 0x4000:  # padded, or of three bytes and more: odd is "not here"
                        length = 1
                stop = begin + (length >> 1)
                if stop <= size and not length & 1:
                    append(source[begin:stop])
                    position = stop
                    continue
            self._position = position
            length = len(self.read_bytes(f"{field}[{len(items)}]"))
            position = self._position
            append(source[position - length : position])
        self._position = position

    def _refusal(self, offset: int, field: str | None, expected: str, found: str) -> MalformedBodyError:
        if field and self.inside:
            field = f"{self.inside}.{field}"
        where = f", in {field}" if field else ""
        start = bytes(self._view[:4])
        hint = next((hint for magic, hint in FOREIGN_STARTS if start.startswith(magic)), None)
        return MalformedBodyError(
            f"binary Avro, byte {offset}{where}: expected {expected}, found {found}", field=field, hint=hint
        )


def encode_long(value: int) -> bytes:
    """A long, or an int, as a zigzag varint. ValueError when it needs more than 64 bits."""
    if not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise ValueError(f"{value} does not fit into a long")
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


class _LengthTable(dict[int, bytes]):
    """Encoded lengths: short ones are at hand, longer ones are made when asked for and not kept."""

    def __missing__(self, length: int) -> bytes:
        return encode_long(length)


LENGTHS = _LengthTable((length, encode_long(length)) for length in range(LENGTH_TABLE_ITEMS))
encode_length = LENGTHS.__getitem__

FIRST_BRANCH, SECOND_BRANCH, THIRD_BRANCH = (encode_long(index) for index in range(3))


def encode_boolean(value: bool) -> bytes:
    """One byte, 0 or 1."""
    return b"\x01" if value else b"\x00"


def encode_bytes(value: Buffer) -> bytes:
    return b"".join((encode_length(len(value)), value))


def encode_string(value: str) -> bytes:
    """A length and the text in UTF-8."""
    return encode_bytes(value.encode())


def encode_optional_long(value: int | None) -> bytes:
    """The union [long, null]."""
    return SECOND_BRANCH if value is None else FIRST_BRANCH + encode_long(value)


def encode_optional_bytes(value: Buffer | None) -> bytes:
    """The union [bytes, null]."""
    return SECOND_BRANCH if value is None else FIRST_BRANCH + encode_bytes(value)


def encode_byte_strings(items: Sequence[Buffer], before: bytes = b"") -> bytes:
    """The type array<bytes>, in one block, after the bytes `before` (a second join would copy every payload again)."""
    if not items:
        return before + END_OF_ARRAY
    # Columns are laid into the list by stride, so that no Python code runs per item.
    parts: list[Buffer] = [END_OF_ARRAY] * (2 * len(items) + 3)
    parts[0] = before
    parts[1] = encode_long(len(items))
    parts[2:-1:2] = map(encode_length, map(len, items))
    parts[3:-1:2] = items
    return b"".join(parts)


def encode_array(items: Sequence[bytes]) -> bytes:
    """An array of items that are encoded already, in one block."""
    return encode_entries(len(items), items)


def encode_entries(count: int, parts: Sequence[bytes]) -> bytes:
    """An array of so many items, in one block; these are their parts, one after the other."""
    return b"".join((encode_long(count), *parts, END_OF_ARRAY)) if count else END_OF_ARRAY
