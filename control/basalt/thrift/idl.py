"""The contents of tephra.thrift, read by thriftpy2: the types, and each method's arguments, result and exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.utils import serialize

from basalt.thrift.arguments import CALL, REPLY, Field, fields_of, message_head

types: Any = thriftpy2.load(str(Path(__file__).with_name("tephra.thrift")), module_name="basalt_tephra_thrift")

_PROTOCOL: Any = TCyBinaryProtocolFactory()  # type: ignore[no-untyped-call]  # as the library has it


@dataclass(frozen=True, slots=True)
class Method:
    """One call of the service. `throws` are the exceptions that it declares, by the name of their field in the result.

    `reply_head` is how the message of its result begins, up to the sequence number.
    """

    name: str
    reply_head: bytes
    arguments: Mapping[int, Field]
    result: Any
    throws: Mapping[type[Exception], str]

    def encode(self, **fields: Any) -> bytes:
        """The bytes of the result struct with this field set."""
        encoded: bytes = serialize(self.result(**fields), _PROTOCOL)
        return encoded


def _method(name: str) -> Method:
    service = types.TTransactionServer
    result = getattr(service, f"{name}_result")
    throws = {field[2]: field[1] for number, field in result.thrift_spec.items() if number != 0}
    return Method(
        name, message_head(REPLY, name), fields_of(getattr(service, f"{name}_args").thrift_spec), result, throws
    )


METHODS: dict[str, Method] = {name: _method(name) for name in types.TTransactionServer.thrift_services}
BY_HEAD: dict[bytes, Method] = {message_head(CALL, name): method for name, method in METHODS.items()}
