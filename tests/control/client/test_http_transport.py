"""Both clients over real sockets, against a server that answers, breaks off, stalls or is not there."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from basalt.api.codecs import batches
from basalt.api.codecs.avro import decode_consume_request, decode_publish_request
from basalt.client import connect
from basalt.client.http_transport import JOINED_BYTES_MAX
from basalt.client.plans import BATCHES
from basalt.errors import (
    ForbiddenError,
    GroupNotFoundError,
    ProtocolError,
    TooLargeError,
    TopicNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.control.client.scripted import CUT, answer, problem, read_request
from tests.ports import reserved_port

TOPIC = b'{"name": "orders", "properties": {"ttl": "60", "generation": "1"}}'
COMMITTED = b'{"id": "7", "writePointer": 7, "state": "COMMITTED"}'
NO_MESSAGES = answer(200, batches.START + batches.END, content_type=BATCHES)


def test_a_publish_is_one_request_with_an_avro_body(side, server):
    side.do(side.connect(server.url).topic("orders").publish(["a", b"b"]))
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", "/v1/namespaces/shop/topics/orders/publish")
    assert seen.headers["content-type"] == "avro/binary"
    assert seen.headers["accept-encoding"] == "identity"
    assert [bytes(m) for m in decode_publish_request(seen.body).messages] == [b"a", b"b"]


def test_a_call_without_a_body_says_nothing_of_its_kind(side, server):
    """aiohttp would say that it is bytes of any kind, and a server that reads two kinds would refuse it."""
    server.script = [problem(404, "group_not_found")]
    with pytest.raises(GroupNotFoundError):
        side.do(side.connect(server.url).topic("orders").group("billing").pause())
    (seen,) = server.seen
    assert (seen.method, seen.body, seen.headers.get("content-type")) == ("POST", b"", None)


class Watched:
    """A socket, and the sizes of what is sent over it at once."""

    def __init__(self, inner: socket.socket, sizes: list[int]) -> None:
        self._inner = inner
        self._sizes = sizes

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def sendall(self, data: bytes) -> None:
        self._sizes.append(len(data))
        self._inner.sendall(data)


@pytest.mark.parametrize(("body_bytes", "pieces"), [(100, 1), (JOINED_BYTES_MAX, 2)])
def test_a_small_body_goes_out_with_its_head(server, monkeypatch, body_bytes: int, pieces: int):
    """A server that gets all of a request at once does half of the work for it; a large body is not copied for that."""
    sizes: list[int] = []
    connecting = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *given: Watched(connecting(*given), sizes))
    with connect(server.url, namespace="shop") as client:
        client.topic("orders").publish(b"x" * body_bytes)
        client.topic("orders").publish(b"x" * body_bytes)
    assert len(server.seen) == 2
    assert len(sizes) == 2 * pieces


def test_requests_share_one_connection(side, server):
    client = side.connect(server.url)
    for _ in range(5):
        side.do(client.topic("orders").publish(b"a"))
    assert (len(server.seen), server.connections) == (5, 1)


def test_a_publish_without_numbers_whose_answer_is_lost_is_not_sent_again(side, server):
    server.script = [CUT]
    with pytest.raises(UnknownOutcomeError, match="whether it took effect is unknown") as raised:
        side.do(side.connect(server.url, dedup=False).topic("orders").publish(b"a"))
    assert len(server.seen) == 1
    assert "basalt-producer" not in server.seen[0].headers
    assert raised.value.request_id == server.seen[0].headers["basalt-request-id"]
    assert "transaction" in (raised.value.hint or "")


def test_a_publish_with_numbers_is_sent_again_with_the_same_ones(side, server):
    server.script = [CUT, CUT, answer(), answer()]
    topic = side.connect(server.url).topic("orders")
    side.do(topic.publish([b"a", b"b"]))
    side.do(topic.publish(b"c"))
    assert [seen.headers["basalt-sequence"] for seen in server.seen] == ["0", "0", "0", "2"]
    assert len({seen.headers["basalt-producer"] for seen in server.seen}) == 1


def test_a_publish_without_numbers_over_a_kept_connection_that_breaks_is_not_sent_again(side, server):
    server.script = [answer(), CUT]
    topic = side.connect(server.url, dedup=False).topic("orders")
    side.do(topic.publish(b"a"))
    with pytest.raises(UnknownOutcomeError):
        side.do(topic.publish(b"b"))
    assert len(server.seen) == 2


@pytest.mark.parametrize("method", ["create", "delete"])
def test_creating_and_deleting_are_not_sent_again_either(side, server, method):
    # They are PUT and DELETE, which HTTP libraries take for safe to repeat.
    server.script = [answer(200, TOPIC, content_type="application/json"), CUT]
    topics = side.connect(server.url).topics
    side.do(topics.get("orders"))
    with pytest.raises(UnknownOutcomeError):
        side.do(getattr(topics, method)("orders"))
    assert len(server.seen) == 2


def test_a_commit_whose_answer_is_lost_is_sent_again_under_the_same_request_id(side, server):
    server.script = [CUT, CUT, answer(200, COMMITTED, content_type="application/json")]
    outcome = side.do(side.connect(server.url).transactions.commit("7"))
    assert outcome.state == "COMMITTED"
    assert len(server.seen) == 3
    assert len({seen.headers["basalt-request-id"] for seen in server.seen}) == 1


def test_two_calls_have_two_request_ids(side, server):
    client = side.connect(server.url)
    for _ in range(2):
        side.do(client.topic("orders").publish(b"a"))
    assert server.seen[0].headers["basalt-request-id"] != server.seen[1].headers["basalt-request-id"]


def test_a_publish_that_a_busy_server_refused_is_sent_again(side, server):
    server.script = [problem(429, "busy", retryAfterMs=1), problem(503, "stopping", retryAfterMs=1), answer()]
    side.do(side.connect(server.url).topic("orders").publish(b"a"))
    assert len(server.seen) == 3


def test_a_server_that_is_not_there_is_named(side):
    with (
        reserved_port() as port,
        pytest.raises(UnavailableError, match=rf"http://127.0.0.1:{port}.*nothing was sent") as raised,
    ):
        side.do(side.connect(f"http://127.0.0.1:{port}").topic("orders").publish(b"a"))
    assert "gave up after 4 attempts" in raised.value.__notes__[0]


def test_a_server_that_comes_up_meanwhile_gets_the_publish(side, server):
    # The first attempt finds nobody; the listener opens before the second.
    with reserved_port() as port:
        client = side.connect(f"http://127.0.0.1:{port}", timeout_ms=60_000, attempts_max=1_000_000)

        def listen() -> None:
            with socket.create_server(("127.0.0.1", port)) as listener:
                serve_one(listener)

        later = threading.Timer(0.05, listen)
        later.start()
        side.do(client.topic("orders").publish(b"a"))
        later.join()


def test_a_poll_is_sent_again_after_a_broken_answer(side, server):
    server.script = [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\nhalf", CUT, NO_MESSAGES]
    page = side.do(side.connect(server.url).topic("orders").poll())
    assert len(page) == 0
    assert len(server.seen) == 3


def test_who_follows_outlives_any_number_of_broken_answers_and_goes_on_where_it_was(side, server):
    def page(number: int) -> bytes:
        body = batches.START + batches.encode_list([bytes([number]) * 20], [b"%d" % number]) + batches.END
        return answer(200, body, content_type=BATCHES, **{"basalt-next": (bytes([number]) * 20).hex()})

    server.script = [page(1), *[CUT] * 20, page(2)]
    reader = side.connect(server.url, attempts_max=2).topic("orders").read(follow=True, limit=2)
    step = next if side.name == "blocking" else anext
    assert [side.do(step(reader)).payload for _ in range(2)] == [b"1", b"2"]
    starts = [decode_consume_request(seen.body).start_from for seen in server.seen]
    assert starts == [None, *[bytes([1]) * 20] * 21]


def test_half_an_answer_to_a_publish_is_an_unknown_outcome(side, server):
    server.script = [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\nhalf"]
    with pytest.raises(UnknownOutcomeError):
        side.do(side.connect(server.url, dedup=False).topic("orders").publish(b"a"))
    assert len(server.seen) == 1


def test_an_answer_in_chunks_is_put_together(side, server):
    body = bytes(range(256)) * 4_000
    message = batches.START + batches.encode_list([bytes(20)], [body]) + batches.END
    chunks = [message[at : at + 70_001] for at in range(0, len(message), 70_001)]
    server.script = [
        b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n" % BATCHES.encode()
        + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        + b"0\r\n\r\n"
    ]
    client = side.connect(server.url)
    for _ in range(2):  # and the connection can be used again
        (found,) = side.do(client.topic("orders").poll())
        assert found.payload == body
    assert server.connections == 1


def test_chunks_that_break_off_are_no_answer(side, server):
    server.script = [
        b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n" % BATCHES.encode()
        + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\n\x01\x00\r\n",
        NO_MESSAGES,
    ]
    assert len(side.do(side.connect(server.url).topic("orders").poll())) == 0
    assert len(server.seen) == 2


def test_a_server_that_never_answers_a_poll_is_given_up_at_the_deadline(side, server):
    server.script = [None]
    with pytest.raises(UnavailableError, match="was lost"):
        side.do(side.connect(server.url, timeout_ms=2_000).topic("orders").poll())


def test_a_server_that_trickles_is_given_up_at_the_deadline(side):
    # Each byte comes in time; the whole would take minutes.
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                while not stop.wait(0.01):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        client = side.connect(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_ms=2_000, attempts_max=1)
        with pytest.raises(UnavailableError, match="was lost"):
            side.do(client.topic("orders").poll())
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("status", "error"), [(401, UnauthenticatedError), (403, ForbiddenError), (407, ProtocolError)]
)
def test_a_proxys_page_is_an_error_that_shows_its_beginning(side, server, status, error):
    server.script = [answer(status, b"<html><h1>Corporate proxy</h1></html>", content_type="text/html")]
    with pytest.raises(error, match="Corporate proxy"):
        side.do(side.connect(server.url).topic("orders").publish(b"a"))


def test_a_success_that_is_a_page_is_a_protocol_error(side, server):
    server.script = [answer(200, b"<html>log in</html>", content_type="text/html")]
    client = side.connect(server.url)
    for call in (lambda: client.topic("orders").poll(), lambda: client.topics.get("orders"), client.version):
        with pytest.raises(ProtocolError, match="log in"):
            side.do(call())


def test_what_does_not_speak_http_is_a_protocol_error(side, server):
    server.script = [b"SSH-2.0-OpenSSH_9.2\r\nxxxxxxxxxxxxxxxxxxxx\r\n\r\n"]
    with pytest.raises(ProtocolError, match="does not speak HTTP"):
        side.do(side.connect(server.url).topic("orders").publish(b"a"))
    assert len(server.seen) == 1


def test_a_problem_comes_back_as_the_class_that_the_server_raised(side, server):
    server.script = [problem(404, "topic_not_found", hint="create it", field="topic", requestId="r-1")]
    with pytest.raises(TopicNotFoundError, match="it is topic_not_found") as raised:
        side.do(side.connect(server.url).topic("orders").publish(b"a"))
    error = raised.value
    assert (error.hint, error.field, error.request_id) == ("create it", "topic", "r-1")


def refuse_early(listener: socket.socket, reads_on: bool) -> None:
    """Read the head of a request alone, refuse it and close."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(1_000)
        connection.sendall(problem(413, "too_large"))
        while reads_on and connection.recv(1 << 20):
            pass


def test_a_body_that_is_refused_before_its_end_tells_why(side):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = threading.Thread(target=refuse_early, args=(listener, True))
        refusing.start()
        client = side.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(TooLargeError):
            side.do(client.topic("orders").publish(b"x" * 8_000_000))
        side.do(client.close())
        refusing.join()


def test_a_refusal_behind_a_broken_pipe_is_found():
    # A server that does not even read the rest. (aiohttp loses the refusal then: an unknown outcome, which is safe.)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = threading.Thread(target=refuse_early, args=(listener, False))
        refusing.start()
        with connect(f"http://127.0.0.1:{listener.getsockname()[1]}") as client, pytest.raises(TooLargeError):
            client.topic("orders").publish(b"x" * 8_000_000)
        refusing.join()


def test_headers_of_the_client_go_with_every_request(side, server):
    client = side.connect(server.url + "/behind/a/proxy/", headers={"Authorization": "Bearer t"})
    side.do(client.topic("orders").publish(b"a"))
    assert server.seen[0].headers["authorization"] == "Bearer t"
    assert server.seen[0].target == "/behind/a/proxy/v1/namespaces/shop/topics/orders/publish"


def test_a_closed_client_says_so(side, server):
    client = side.connect(server.url)
    side.do(client.topic("orders").publish(b"a"))
    for _ in range(2):
        side.do(client.close())
    with pytest.raises(RuntimeError, match="closed"):
        side.do(client.topic("orders").publish(b"a"))


def test_many_threads_share_a_client(server):

    server.script = [NO_MESSAGES]
    with connect(server.url) as client:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(50):
                    assert len(client.topic("orders").poll()) == 0
            except BaseException as error:  # told below
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(server.seen) == 400
    assert server.connections <= 8


def test_connections_beyond_those_that_are_kept_are_closed_and_every_call_is_answered(server, monkeypatch):

    monkeypatch.setattr("basalt.client.http_transport.IDLE_CONNECTIONS_MAX", 2)
    server.script = [NO_MESSAGES]
    with connect(server.url) as client:
        together = threading.Barrier(6)

        def work() -> int:
            together.wait()
            return sum(len(client.topic("orders").poll()) == 0 for _ in range(20))

        with ThreadPoolExecutor(6) as threads:
            assert [each.result() for each in [threads.submit(work) for _ in range(6)]] == [20] * 6
        before = server.connections
        assert client.topic("orders").poll() is not None
        assert server.connections == before, "one of those that are kept is used"
    assert len(server.seen) == 121


def test_a_connection_that_the_server_closed_while_idle_is_not_used(side):
    # Without a word: no header told that it would.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = side.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(2):
            served = threading.Thread(target=serve_one, args=(listener,))
            served.start()
            side.do(client.topic("orders").publish(b"a"))
            served.join()
            side.do(some_turns())


def serve_one(listener: socket.socket) -> None:
    """Answer one request, once it is there as a whole, and close the connection."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        assert read_request(stream) is not None
        connection.sendall(answer())


async def some_turns() -> None:
    """Let the event loop see what its sockets have to say."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_last_answer_of_a_connection_is_read_to_its_end(side, server):
    payload = bytes(1_000_000)
    body = batches.START + batches.encode_list([bytes(20)], [payload]) + batches.END
    server.script = [answer(200, body, content_type=BATCHES, connection="close")]
    for _ in range(2):
        (message,) = side.do(side.connect(server.url).topic("orders").poll())
        assert message.payload == payload


class Interrupted(Exception):
    """What a signal's handler raises here; Ctrl-C raises KeyboardInterrupt."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGALRM interrupts whoever calls."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_at_the_very_end_of_an_answer_is_raised(server, monkeypatch):
    """Where a finalizer closes the answer, Python drops it, and whoever pressed Ctrl-C waits."""
    close = http.client.HTTPResponse.close

    def close_interrupted(response: http.client.HTTPResponse) -> None:
        close(response)
        signal.raise_signal(signal.SIGALRM)

    with connect(server.url) as client:
        monkeypatch.setattr(http.client.HTTPResponse, "close", close_interrupted)
        with pytest.raises(Interrupted):
            client.topic("orders").publish(b"a")
        monkeypatch.undo()
        client.topic("orders").publish(b"b")
    assert (len(server.seen), server.connections) == (2, 2)


@pytest.mark.usefixtures("interrupts")
def test_a_long_poll_can_be_interrupted(server):
    main = threading.get_ident()

    def interrupt_the_first() -> None:
        while not server.seen:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGALRM)

    server.script = [None, NO_MESSAGES]
    with connect(server.url) as client:
        threading.Thread(target=interrupt_the_first).start()
        with pytest.raises(Interrupted):
            client.topic("orders").poll(wait_ms=60_000)
        assert len(client.topic("orders").poll()) == 0
    assert server.connections == 2  # half an answer may be on the first: it is not used again


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_use_its_parents_connections(server):

    with connect(server.url) as client:
        client.topic("orders").publish(b"parent")
        child = os.fork()
        if child == 0:
            try:
                client.topic("orders").publish(b"child")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.topic("orders").publish(b"parent again")
    assert server.connections == 2
