"""Does a Thrift gateway answer a call, and not only take the connection? Plain sockets: also where no library is installed.

Messages of the strict binary protocol, unframed, which is how the gateways speak by default.
"""

from __future__ import annotations

import socket
import struct

CALL, REPLY = 0x80010001, 0x80010002
STRING, MAP, LIST = 11, 13, 15
STOP = b"\0"
SASL_START = 1
SASL_REFUSALS = (b"\x03", b"\x04")  # BAD, ERROR
PING_TIMEOUT_S = 3.0  # a gateway whose HBase is not ready yet tries on for longer than we want to wait
RESULT_BYTES_MAX = 64


def answers_thrift(port: int) -> bool:
    """Thrift 1 on this port of 127.0.0.1 lists the tables, and reads hbase:meta: so master and meta region are there."""
    no_attributes = struct.pack("!bhbbi", MAP, 3, STRING, STRING, 0)
    get_row = _text(1, b"hbase:meta") + _text(2, b"x") + no_attributes + STOP
    return _answers(port, b"getTableNames", STOP) and _answers(port, b"getRow", get_row)


def answers_thrift2(port: int) -> bool:
    """Thrift 2 on this port of 127.0.0.1 lists the tables."""
    return _answers(port, b"getTableNamesByNamespace", _text(1, b"default") + STOP)


def demands_sasl(port: int) -> bool:
    """A gateway on this port of 127.0.0.1 refuses a mechanism of SASL that there is not."""
    mechanism = b"NONE"
    try:
        with socket.create_connection(("127.0.0.1", port), PING_TIMEOUT_S) as connection:
            connection.settimeout(PING_TIMEOUT_S)
            connection.sendall(struct.pack("!bi", SASL_START, len(mechanism)) + mechanism)
            return connection.recv(1) in SASL_REFUSALS
    except OSError:
        return False


def _text(field: int, value: bytes) -> bytes:
    return struct.pack("!bhi", STRING, field, len(value)) + value


def _answers(port: int, method: bytes, arguments: bytes) -> bool:
    """True when the call is answered by a list; not by an exception, silence or a closed connection."""
    header = struct.pack("!Ii", CALL, len(method)) + method + struct.pack("!i", 1)
    expected = struct.pack("!Ii", REPLY, len(method)) + method + struct.pack("!i", 1) + struct.pack("!bh", LIST, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), PING_TIMEOUT_S) as connection:
            connection.settimeout(PING_TIMEOUT_S)
            connection.sendall(header + arguments)
            answer = b""
            while len(answer) < len(expected) and (more := connection.recv(RESULT_BYTES_MAX)):
                answer += more
    except OSError:
        return False
    return answer.startswith(expected)
