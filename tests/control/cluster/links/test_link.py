"""One link over a real connection: order, many at a time, errors, cancelled callers, breaks, a slow other side, and what is no frame."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from basalt.cluster.links import link as module
from basalt.cluster.links.beats import BEAT, Beat
from basalt.cluster.links.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, CallKind, Kind, frame_bytes
from basalt.cluster.links.link import (
    ANSWERS_BYTES_MAX,
    CALLS_MAX,
    CLOSE_SECONDS_MAX,
    QUEUE_BYTES_MAX,
    UNHURRIED_MS,
    Handlers,
    Link,
    Reply,
    opened,
)
from basalt.errors import (
    BusyError,
    InternalError,
    MalformedBodyError,
    ProtocolError,
    TooLargeError,
    TopicNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.control.cluster.links.link_pair import COUNT, ECHO, HANG_S, NOBODYS, Ends, run, until

LONG_MS = HANG_S * 1_000
TOLD: CallKind[int, int] = CallKind(203, "told", int, int, is_urgent=False)


class Held:
    """Answers calls when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.cancelled: list[int] = []
        self.go_on = asyncio.Event()

    async def answer(self, _instance: str, question: int) -> int:
        self.asked.append(question)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(question)
            raise
        return question


def test_a_question_gets_its_answer_and_the_handler_knows_who_asks():
    async def story(ends: Ends) -> None:
        seen: list[str] = []
        ends.answers_handlers.add(COUNT, lambda instance, question: seen.append(instance) or question + 1)  # type: ignore[func-returns-value]
        assert await ends.asks.call(COUNT, 1, LONG_MS) == 2
        assert seen == ["member"]
        assert (ends.asks.peer, ends.answers.peer) == ("leader", "member")

    run(story)


def test_both_sides_ask():
    async def story(ends: Ends) -> None:
        ends.asks_handlers.add(ECHO, lambda _, question: b"back: " + question)
        there, back = await asyncio.gather(ends.asks.call(ECHO, b"x", LONG_MS), ends.answers.call(ECHO, b"x", LONG_MS))
        assert (there, back) == (b"x", b"back: x")

    run(story)


def test_calls_begin_in_the_order_of_asking_and_each_gets_its_own_answer():
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        calls = [asyncio.ensure_future(ends.asks.call(COUNT, each, LONG_MS)) for each in range(500)]
        await until(lambda: len(held.asked) == 500)
        assert held.asked == list(range(500))
        held.go_on.set()
        assert await asyncio.gather(*calls) == list(range(500))
        assert (ends.asks.calls, ends.answers.answering) == (0, 0)

    run(story)


def test_frames_of_one_turn_leave_as_one_write(monkeypatch: pytest.MonkeyPatch):
    async def story(ends: Ends) -> None:
        writes: list[int] = []
        flush = Link._flush

        def counted(self: Link) -> None:
            if self is ends.asks and self._out:
                writes.append(len(self._out))
            flush(self)

        monkeypatch.setattr(Link, "_flush", counted)
        await asyncio.gather(*(ends.asks.call(ECHO, b"x", LONG_MS) for _ in range(100)))
        assert len(writes) == 1

    run(story)


def test_a_reply_leaves_with_what_was_sent_before_it_in_its_turn(monkeypatch: pytest.MonkeyPatch):
    async def story(ends: Ends) -> None:
        replies: list[Reply[int]] = []
        writes: list[int] = []
        flush = Link._flush

        def counted(self: Link) -> None:
            if self is ends.answers and self._out:
                writes.append(len(self._out))
            flush(self)

        def later(_instance: str, _question: int) -> Reply[int]:
            replies.append(Reply(len))
            return replies[-1]

        ends.answers_handlers.add(COUNT, later)
        ends.asks_handlers.add(ECHO, lambda _, question: question)
        asked = [asyncio.ensure_future(ends.asks.call(COUNT, 1, LONG_MS)) for _ in range(4)]
        await until(lambda: len(replies) == 4)
        asked[3].cancel()
        await until(replies[3].cancelled)
        monkeypatch.setattr(Link, "_flush", counted)
        told: list[asyncio.Future[bytes]] = []
        ends.answers.send(ECHO, b"before", LONG_MS, told.append)
        replies[0].set_result("four")
        replies[1].set_exception(TopicNotFoundError("no topic orders"))
        assert await asked[0] == 4
        assert len(writes) == 1
        with pytest.raises(TopicNotFoundError):
            await asked[1]
        await until(lambda: bool(told))
        ends.asks.close("gone")
        await until(replies[2].cancelled)
        with pytest.raises(UnknownOutcomeError):
            await asked[2]
        assert ends.answers.answering == 0

    run(story)


def test_an_answer_that_nobody_waits_for_leaves_with_the_next_one_or_a_moment_later(monkeypatch: pytest.MonkeyPatch):
    async def story(ends: Ends) -> None:
        ends.answers_handlers.add(TOLD, lambda _, question: question)
        ends.answers_handlers.add(COUNT, lambda _, question: question)
        assert await ends.asks.call(TOLD, 1, LONG_MS) == 1
        monkeypatch.setattr(module, "UNHURRIED_MS", 10 * LONG_MS)
        told = [asyncio.ensure_future(ends.asks.call(TOLD, each, LONG_MS)) for each in range(3)]
        await until(lambda: ends.answers.queued_bytes > 0)
        assert not any(each.done() for each in told)
        assert await ends.asks.call(COUNT, 2, LONG_MS) == 2
        assert [each.done() for each in told] == [True] * 3
        last = asyncio.ensure_future(ends.asks.call(TOLD, 1, LONG_MS))
        await until(lambda: ends.answers.queued_bytes > 0)
        ends.answers.close("gone", bye=True)
        assert await last == 1

    assert UNHURRIED_MS < LONG_MS
    run(story)


def test_a_reply_that_is_there_at_once_is_an_answer_like_any_other():
    async def story(ends: Ends) -> None:
        def at_once(_instance: str, question: int) -> Reply[int]:
            reply = Reply(abs)
            reply.set_result(question)
            return reply

        ends.answers_handlers.add(COUNT, at_once)
        assert await ends.asks.call(COUNT, -7, LONG_MS) == 7

    run(story)


def test_the_largest_question_and_answer_come_through_beside_small_ones():
    async def story(ends: Ends) -> None:
        large = bytes(FRAME_BYTES_MAX - 100)
        answers = await asyncio.gather(*(ends.asks.call(ECHO, each, LONG_MS) for each in (large, b"small")))
        assert answers == [large, b"small"]

    run(story)


def test_what_is_too_large_is_refused_and_the_link_goes_on():
    async def story(ends: Ends) -> None:
        ends.answers_handlers.add(COUNT, lambda _, question: bytes(FRAME_BYTES_MAX + question))  # type: ignore[arg-type, return-value]
        with pytest.raises(TooLargeError):
            await ends.asks.call(ECHO, bytes(FRAME_BYTES_MAX), LONG_MS)
        with pytest.raises(TooLargeError):
            await ends.asks.call(COUNT, 1, LONG_MS)
        assert await ends.asks.call(ECHO, b"x", LONG_MS) == b"x"
        assert ends.asks.calls == 0

    run(story)


@pytest.mark.parametrize("later", [False, True])
def test_an_error_comes_with_its_class_and_a_bug_with_nothing_of_it(later: bool, caplog: pytest.LogCaptureFixture):
    async def story(ends: Ends) -> None:
        async def answer(_instance: str, question: int) -> int:
            return fail(question)

        def fail(question: int) -> int:
            if question:
                raise TopicNotFoundError("no topic orders", field="topic", hint="create it")
            raise ValueError("an inner thing")

        ends.answers_handlers.add(COUNT, answer if later else lambda _, question: fail(question))
        with pytest.raises(TopicNotFoundError, match="no topic orders"):
            await ends.asks.call(COUNT, 1, LONG_MS)
        with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as told:
            await ends.asks.call(COUNT, 0, LONG_MS)
        assert "inner" not in told.value.message
        assert "an inner thing" in caplog.text
        assert ends.answers.answering == 0

    run(story)


def test_a_call_that_nobody_answers_or_reads_is_an_error():
    async def story(ends: Ends) -> None:
        ends.answers_handlers.add(COUNT, lambda _, question: question)
        with pytest.raises(ProtocolError, match="knows no call"):
            await ends.asks.call(NOBODYS, 1, LONG_MS)
        with pytest.raises(UnavailableError, match="answers no calls of kind beat now"):  # but will some other time
            await ends.asks.call(BEAT, Beat(1), LONG_MS)
        with pytest.raises(MalformedBodyError):
            await ends.asks.call(COUNT, "not a number", LONG_MS)  # type: ignore[misc]
        with pytest.raises(MalformedBodyError):
            ends.asks._append(0, 0, None)
            await ends.asks.call(COUNT, [], LONG_MS)  # type: ignore[misc]

    run(story)


def test_an_answer_that_cannot_be_read_leaves_the_outcome_open():
    async def story(ends: Ends) -> None:
        ends.answers_handlers.add(COUNT, lambda _, _question: "not a number")  # type: ignore[arg-type, return-value]
        with pytest.raises(UnknownOutcomeError, match="cannot be read"):
            await ends.asks.call(COUNT, 1, LONG_MS)

    run(story)


def test_a_cancelled_caller_calls_the_call_off():
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        call = asyncio.ensure_future(ends.asks.call(COUNT, 1, LONG_MS))
        await until(lambda: held.asked == [1])
        call.cancel()
        await until(lambda: held.cancelled == [1])
        assert (ends.asks.calls, ends.answers.answering) == (0, 0)
        assert await ends.asks.call(ECHO, b"x", LONG_MS) == b"x"

    run(story)


def test_a_call_that_takes_too_long_is_called_off_and_its_outcome_is_open():
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        with pytest.raises(UnknownOutcomeError, match="in time"):
            await ends.asks.call(COUNT, 1, 1)
        await until(lambda: held.cancelled == held.asked)
        assert ends.asks.calls == 0

    run(story)


def test_of_calls_with_different_times_each_is_called_off_in_its_own():
    async def story(ends: Ends) -> None:
        held, told = Held(), list[asyncio.Future[int]]()
        ends.answers_handlers.add(COUNT, held.answer)
        long = asyncio.ensure_future(ends.asks.call(COUNT, 1, LONG_MS))
        ends.asks.send(COUNT, 2, 60, told.append)
        short = asyncio.ensure_future(ends.asks.call(COUNT, 3, 1))
        with pytest.raises(UnknownOutcomeError, match="in time"):
            await short
        await until(lambda: bool(told))
        assert "in time" in str(told[0].exception())
        await until(lambda: sorted(held.cancelled) == [2, 3])
        assert ends.asks.calls == 1
        held.go_on.set()
        assert await long == 1

    run(story)


def test_a_call_out_of_time_may_end_the_link_of_others_that_are_too():
    async def story(ends: Ends) -> None:
        held, told = Held(), list[str]()
        ends.answers_handlers.add(COUNT, held.answer)

        def then(answer: asyncio.Future[int]) -> None:
            told.append(str(answer.exception()))
            ends.asks.close("it does not answer")

        for number in range(3):
            ends.asks.send(COUNT, number, 1, then)
        await until(lambda: len(told) == 3)
        assert ["in time" in each for each in told] == [True, False, False]
        assert (ends.asks.calls, ends.asks._looking) == (0, None)

    run(story)


@pytest.mark.parametrize("side", ["asks", "answers"])
def test_a_break_ends_all_calls_and_tells_that_nobody_knows(side: str):
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        calls = [asyncio.ensure_future(ends.asks.call(COUNT, each, LONG_MS)) for each in range(3)]
        await until(lambda: len(held.asked) == 3)
        getattr(ends, side)._transport.abort()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, UnknownOutcomeError)
        await until(lambda: held.cancelled == [0, 1, 2])
        assert (ends.asks.is_open, ends.asks.calls, ends.answers.answering) == (False, 0, 0)
        with pytest.raises(UnavailableError, match="nothing was done"):
            await ends.asks.call(COUNT, 1, LONG_MS)

    run(story)


def test_who_goes_says_so_after_all_that_it_has_answered():
    async def story(ends: Ends) -> None:
        call = asyncio.ensure_future(ends.asks.call(ECHO, b"x", LONG_MS))
        await asyncio.sleep(0)
        assert await call == b"x"
        ends.answers.close("it stops", bye=True)
        await ends.asks.closed
        assert (ends.asks.said_bye, ends.answers.said_bye) == (True, True)
        assert ends.asks.closed.result() == "the other server goes"

    run(story)


def test_who_does_not_read_gets_no_more_calls_and_costs_little():
    async def story(ends: Ends) -> None:
        assert ends.answers._transport is not None
        ends.answers._transport.pause_reading()
        question, calls, refused = bytes(1 << 20), [], 0
        while not refused:
            calls.append(asyncio.ensure_future(ends.asks.call(ECHO, question, LONG_MS)))
            await asyncio.sleep(0)
            refused = sum(each.done() for each in calls)
            assert ends.asks.queued_bytes < QUEUE_BYTES_MAX + 2 * len(question)
        with pytest.raises(BusyError, match="nothing was done"):
            await calls.pop()
        ends.answers._transport.resume_reading()
        assert await asyncio.gather(*calls) == len(calls) * [question]

    run(story)


def test_who_asks_and_never_takes_an_answer_is_cut_off():
    async def story(ends: Ends) -> None:
        assert ends.asks._transport is not None
        ends.answers_handlers.add(COUNT, lambda _, _question: bytes(8 << 20))  # type: ignore[arg-type, return-value]
        ends.asks._transport.pause_reading()
        calls = [
            asyncio.ensure_future(ends.asks.call(COUNT, each, LONG_MS))
            for each in range(ANSWERS_BYTES_MAX // (8 << 20) + 4)
        ]
        reason = await ends.answers.closed
        assert "has not taken" in reason
        ends.asks._transport.resume_reading()
        assert all(
            isinstance(each, UnknownOutcomeError | bytes)
            for each in await asyncio.gather(*calls, return_exceptions=True)
        )

    run(story)


def test_more_calls_than_the_limit_are_refused_on_either_side(monkeypatch: pytest.MonkeyPatch):
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        calls = [asyncio.ensure_future(ends.asks.call(COUNT, each, LONG_MS)) for each in range(4)]
        await until(lambda: len(held.asked) == 4)
        monkeypatch.setattr(module, "CALLS_MAX", 4)
        with pytest.raises(BusyError, match="4 calls wait"):
            await ends.asks.call(COUNT, 9, LONG_MS)
        monkeypatch.setattr(module, "CALLS_MAX", 5)
        ends.answers._running[10_000] = asyncio.get_running_loop().create_future()
        with pytest.raises(BusyError, match="answers 5 calls"):
            await ends.asks.call(COUNT, 9, LONG_MS)
        held.go_on.set()
        assert await asyncio.gather(*calls) == [0, 1, 2, 3]

    assert CALLS_MAX >= 4
    run(story)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", frame_bytes(0, ECHO.number, b"x"), b"\0\0\0\1\xc0"])
def test_what_is_no_frame_ends_the_link(data: bytes):
    async def story(ends: Ends) -> None:
        assert ends.asks._transport is not None
        ends.asks._transport.write(data)
        await ends.answers.closed
        await ends.asks.closed

    run(story)


def test_a_number_that_is_in_use_ends_the_link():
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        ends.asks._append(7, COUNT.number, 1)
        ends.asks._append(7, COUNT.number, 2)
        assert "in use" in await ends.answers.closed

    run(story)


def test_answers_that_nobody_waits_for_are_passed_over():
    async def story(ends: Ends) -> None:
        for kind in (Kind.ANSWER, Kind.ERROR, Kind.CANCEL):
            ends.asks._append(77, kind, None)
        assert await ends.asks.call(ECHO, b"x", LONG_MS) == b"x"

    run(story)


def test_before_the_hello_is_over_no_call_is_read_and_no_large_frame():
    async def story(ends: Ends) -> None:
        for data in (frame_bytes(1, ECHO.number, b"x"), (HELLO_BYTES_MAX + 1).to_bytes(4, "big")):
            loop = asyncio.get_running_loop()
            server = await loop.create_server(ends.accept, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(data)
            assert await reader.read() == b""
            assert not ends.answers.is_open
            writer.close()
            server.close()

    run(story)


def test_a_wrong_secret_is_refused_on_both_sides_and_no_call_is_made():
    async def story(ends: Ends) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(ends.accept, "127.0.0.1", 0)
        await loop.create_connection(lambda: ends.dial(b"another"), *server.sockets[0].getsockname())
        assert not await opened(ends.asks, HANG_S)
        await ends.answers.closed
        for side in (ends.asks, ends.answers):
            assert side.refused is not None
            assert side.refused.why == "secret"
        with pytest.raises(UnavailableError):
            await ends.asks.call(ECHO, b"x", LONG_MS)
        server.close()

    run(story)


def test_a_caller_that_says_nothing_is_closed():
    async def story(ends: Ends) -> None:
        server = await asyncio.get_running_loop().create_server(ends.accept, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            former = ends.answers
            await until(lambda: ends.answers is not former)
            assert not await opened(ends.answers, 0.01)
            assert ends.answers.closed.result() == "it said no hello in time"
        server.close()

    run(story)


def test_a_side_that_never_takes_the_last_frames_is_let_go(monkeypatch: pytest.MonkeyPatch):
    assert CLOSE_SECONDS_MAX > 0
    monkeypatch.setattr(module, "CLOSE_SECONDS_MAX", 0.01)

    async def story(ends: Ends) -> None:
        assert ends.answers._transport is not None
        assert ends.asks._transport is not None
        ends.answers._transport.pause_reading()
        call = asyncio.ensure_future(ends.asks.call(ECHO, bytes(8 << 20), LONG_MS))
        await asyncio.sleep(0)
        ends.asks.close("it goes", bye=True)
        transport = ends.asks._transport
        await until(lambda: transport.get_write_buffer_size() == 0)
        with pytest.raises(UnknownOutcomeError):
            await call

    run(story)


def test_a_kind_of_call_has_one_handler():
    handlers = Handlers()
    handlers.add(ECHO, lambda _, question: question)
    with pytest.raises(ValueError, match="answered already"):
        handlers.add(ECHO, lambda _, question: question)


def test_a_hundred_links_at_a_time():
    async def story(ends: Ends) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(ends.accept, "127.0.0.1", 0)
        links: list[Link] = []
        for _ in range(100):
            await loop.create_connection(ends.dial, *server.sockets[0].getsockname())
            links.append(ends.asks)
        assert all([await opened(each, HANG_S) for each in links])
        answers = await asyncio.gather(
            *(each.call(ECHO, b"%d" % place, LONG_MS) for place, each in enumerate(links) for _ in range(10))
        )
        assert answers == [b"%d" % place for place in range(100) for _ in range(10)]
        for each in links:
            each.close("done")
        server.close()

    run(story)


def test_what_is_sent_without_waiting_comes_in_order_and_its_answer_is_told():
    async def story(ends: Ends) -> None:
        seen: list[int] = []
        told: list[asyncio.Future[int]] = []
        ends.answers_handlers.add(COUNT, lambda _, question: seen.append(question) or question)  # type: ignore[func-returns-value]
        for number in range(3):
            ends.asks.send(COUNT, number, LONG_MS, told.append)
        assert await ends.asks.call(COUNT, 3, LONG_MS) == 3
        assert seen == [0, 1, 2, 3]
        assert [each.result() for each in told] == [0, 1, 2]
        assert ends.asks.calls == 0

    run(story)


def test_what_follows_an_answer_is_done_before_a_later_frame_is_looked_at_and_its_fault_is_its_own(
    caplog: pytest.LogCaptureFixture,
):
    async def story(ends: Ends) -> None:
        seen: list[str] = []
        loop, told = asyncio.get_running_loop(), list[asyncio.Future[bytes]]()

        def answer(_instance: str, question: int) -> int:
            loop.call_soon(
                ends.answers.send, ECHO, b"x", LONG_MS, told.append
            )  # which leaves with the answer, behind it
            return question

        def then(answer: asyncio.Future[int]) -> None:
            seen.append(f"told {answer.result()}")
            raise RuntimeError("a fault of whoever asked")

        ends.answers_handlers.add(COUNT, answer)
        ends.asks_handlers.add(ECHO, lambda _, question: seen.append("asked") or question)  # type: ignore[func-returns-value]
        ends.asks.send(COUNT, 1, LONG_MS, then)
        await until(lambda: bool(told))
        assert told[0].result() == b"x"
        assert seen == ["told 1", "asked"]

    run(story)
    assert "what follows a call of kind count failed" in caplog.text


def test_calls_that_gather_leave_together_after_the_connections_were_looked_at_once_more(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(ends: Ends) -> None:
        asked, writes = list[int](), list[int]()
        flush = Link._flush

        def counted(self: Link) -> None:
            if self is ends.asks and self._out:
                writes.append(self._gathered)
            flush(self)

        monkeypatch.setattr(Link, "_flush", counted)
        loop = asyncio.get_running_loop()

        def ask(number: int) -> None:
            ends.asks.send(COUNT, number, LONG_MS, told.append, gathers=True)

        ends.answers_handlers.add(COUNT, lambda _, question: asked.append(question) or question)  # type: ignore[func-returns-value]
        told: list[asyncio.Future[int]] = []
        for first, others in ((0, 1), (2, 3), (4, 5)):
            ask(first)
            loop.call_soon(ask, others)  # as a call that is read in the next turn
            await until(lambda first=first: len(told) == first + 2)  # type: ignore[misc]
        assert asked == list(range(6))
        assert writes == [1, 1, 1, 1, 1, 1]  # alone: nobody is waited for
        writes.clear()
        ask(6)
        ask(7)
        await until(lambda: len(told) == 8)
        ask(8)
        loop.call_soon(ask, 9)
        await until(lambda: len(told) == 10)
        assert writes == [2, 2]

    run(story)


def test_an_error_that_cannot_be_read_ends_the_link_and_its_caller_hears_of_it():
    async def story(ends: Ends) -> None:
        held = Held()
        ends.answers_handlers.add(COUNT, held.answer)
        call = asyncio.ensure_future(ends.asks.call(COUNT, 1, LONG_MS))
        await until(lambda: held.asked == [1])
        ends.answers._append(1, Kind.ERROR, "no error")
        with pytest.raises(UnknownOutcomeError, match="the link broke"):
            await call

    run(story)


def test_whoever_sent_without_waiting_hears_of_the_break():
    async def story(ends: Ends) -> None:
        held, told = Held(), list[asyncio.Future[int]]()
        ends.answers_handlers.add(COUNT, held.answer)
        ends.asks.send(COUNT, 1, LONG_MS, told.append)
        await until(lambda: held.asked == [1])
        ends.answers.close("gone")
        await until(lambda: bool(told))
        assert isinstance(told[0].exception(), UnknownOutcomeError)
        with pytest.raises(UnavailableError):
            ends.asks.send(COUNT, 2, LONG_MS, told.append)

    run(story)


def test_a_call_whose_kind_was_removed_is_known_no_more():
    async def story(ends: Ends) -> None:
        ends.answers_handlers.add(COUNT, lambda _, question: question)
        assert await ends.asks.call(COUNT, 1, LONG_MS) == 1
        ends.answers_handlers.remove(COUNT)
        with pytest.raises(ProtocolError, match="knows no call"):
            await ends.asks.call(COUNT, 1, LONG_MS)
        ends.answers_handlers.add(COUNT, lambda _, question: question + 1)
        assert await ends.asks.call(COUNT, 1, LONG_MS) == 2

    run(story)
