"""Length-prefixed JSON over pipes. JSON and not pickle: what a worker sends is never executed."""

import json
import os
import struct
from typing import Any

HEADER = struct.Struct("!I")
#: A longer frame is garbage written into the pipe, not an answer.
MAX_FRAME_BYTES = 64 * 2**20


class WireError(Exception):
    """The other side sent something that is not a frame."""


def encode(message: Any) -> bytes:
    """One frame. Lone surrogates survive because JSON escapes them."""
    body = json.dumps(message).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(body)} bytes is longer than {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


class Decoder:
    """Collects bytes until a frame is whole."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        self._buffer += data

    def take(self) -> Any | None:
        """The next message, or None while it is incomplete. A message is never JSON null.

        Raises:
            WireError: The bytes are not a frame.
        """
        if len(self._buffer) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._buffer)
        if size > MAX_FRAME_BYTES:
            raise WireError(f"a frame of {size} bytes")
        end = HEADER.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"not JSON: {error}") from error


def write_all(fd: int, data: bytes) -> None:
    """Blocking write of everything."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int, decoder: Decoder) -> Any | None:
    """Blocking read of one message; None at the end of the stream."""
    while (message := decoder.take()) is None:
        data = os.read(fd, 2**16)
        if not data:
            return None
        decoder.feed(data)
    return message
