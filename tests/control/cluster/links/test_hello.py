"""The hello: who is let in, who is not and why, and that nothing said before helps anybody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from basalt.cluster.links.frames import HELLO_BYTES_MAX, Frame, FrameReader, Kind, frame_bytes
from basalt.cluster.links.hello import (
    LEADER,
    NONCE_BYTES,
    OTHER,
    PROOF_BYTES,
    VERSION,
    Accept,
    Acceptor,
    Dial,
    Hello,
    RefusedError,
    fingerprint,
    proof,
    refusal,
)
from basalt.errors import ProtocolError
from tests.vector_lines import lines

SECRET = b"a secret of thirty-two characters"
NONCE, OTHER_NONCE = bytes(range(NONCE_BYTES)), bytes(range(NONCE_BYTES, 2 * NONCE_BYTES))
SHOWN = bytes(range(2 * NONCE_BYTES, 3 * NONCE_BYTES))  # fingerprint of a certificate
OWN = Acceptor(SECRET, "installation", "leader", 7, 7)


def hello(**changed: Any) -> Hello:
    return msgspec.structs.replace(Hello(VERSION, "installation", "member", "leader", 7, LEADER, NONCE), **changed)


def frame(data: bytes) -> Frame:
    (found,) = FrameReader(HELLO_BYTES_MAX).feed(data)
    return found


def talk(dial: Dial, accept: Accept, own: Acceptor = OWN) -> list[bytes]:
    """All that is said until both are done, or the first error."""
    said = [dial.opening(own.certificate)]
    said.append(accept.step(frame(said[-1]), own))
    said.append(dial.step(frame(said[-1])))
    said.append(accept.step(frame(said[-1]), own))
    assert dial.step(frame(said[-1])) == b""
    return said


def test_two_that_know_the_secret_are_linked():
    dial, accept = Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here")
    talk(dial, accept)
    assert (dial.is_done, accept.is_done, accept.hello) == (True, True, hello())


def test_the_bytes_are_those_of_the_vectors():
    vectors = {name: data for name, data, _ in lines("links")}
    said = talk(Dial(SECRET, hello(installation="3f9c0e6a51b2d874", instance="00112233445566aa", to="8899aabbccddeeff"), "there"),
                Accept(OTHER_NONCE, "here"), OWN._replace(installation="3f9c0e6a51b2d874", instance="8899aabbccddeeff", certificate=SHOWN))  # fmt: skip
    assert said == [vectors[name] for name in ("hello", "challenge", "proof", "welcome")]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (OWN._replace(secret=b"another secret, as long as that one"), "secret"),
        (OWN._replace(installation="other"), "installation"),
        (OWN._replace(installation=""), "not_ready"),
        (OWN._replace(instance="other"), "another_server"),
        (OWN._replace(epoch=8, newest_epoch=8), "stale"),
        (OWN._replace(epoch=0, newest_epoch=8), "stale"),
        (OWN._replace(epoch=0), "not_leader"),
        (OWN._replace(epoch=6, newest_epoch=6), "not_leader"),  # the caller knows of a newer leader than this one
        (OWN._replace(is_full=True), "full"),
    ],
)
def test_who_does_not_fit_is_refused_and_both_sides_know_why(own: Acceptor, why: str):
    dial, accept = Dial(SECRET, hello(), "there:1"), Accept(OTHER_NONCE, "here:2")
    with pytest.raises(RefusedError) as refused:
        talk(dial, accept, own)
    assert (refused.value.why, accept.is_done) == (why, False)
    with pytest.raises(RefusedError) as told:
        dial.step(frame(refusal(refused.value)))
    assert (told.value.why, "there:1" in told.value.message) == (why, True)


@pytest.mark.parametrize("changed", [{"version": VERSION + 1}, {"purpose": "gossip"}])
def test_what_this_version_does_not_know_is_refused(changed: dict[str, Any]):
    with pytest.raises(RefusedError) as refused:
        talk(Dial(SECRET, hello(**changed), "there"), Accept(OTHER_NONCE, "here"))
    assert refused.value.why == ("version" if "version" in changed else "not_leader")


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        (fingerprint(b"of somebody between the two"), SHOWN),
        (b"", SHOWN),  # somebody between the two took TLS away
        (SHOWN, b""),  # or put it on
        (SHOWN[:-1], SHOWN),
    ],
)
def test_a_caller_that_has_seen_another_certificate_than_was_shown_is_refused(seen: bytes, shown: bytes):
    dial, accept = Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here")
    challenge = accept.step(frame(dial.opening(seen)), OWN)
    with pytest.raises(RefusedError, match="ends TLS") as refused:
        accept.step(frame(dial.step(frame(challenge))), OWN._replace(certificate=shown))
    assert (refused.value.why, accept.is_done) == ("certificate", False)


def test_a_certificate_that_somebody_on_the_way_puts_in_the_place_of_theirs_costs_them_the_proof():
    """They cannot tell the other side what it wants to hear: the certificate is in what is proved."""
    dial, accept = Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here")
    dial.opening(fingerprint(b"of somebody between the two"))
    challenge = accept.step(frame(frame_bytes(0, Kind.HELLO, hello(certificate=SHOWN))), OWN)
    with pytest.raises(RefusedError) as refused:
        accept.step(frame(dial.step(frame(challenge))), OWN._replace(certificate=SHOWN))
    assert refused.value.why == "secret"


def test_a_hello_that_was_recorded_is_refused_when_it_is_played_again():
    said = talk(Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here"))
    accept = Accept(bytes(reversed(OTHER_NONCE)), "here")
    accept.step(frame(said[0]), OWN)
    with pytest.raises(RefusedError) as refused:
        accept.step(frame(said[2]), OWN)
    assert refused.value.why == "secret"


def test_a_leader_that_was_recorded_proves_nothing_to_another_hello():
    said = talk(Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here"))
    dial = Dial(SECRET, hello(nonce=bytes(NONCE_BYTES)), "there")
    dial.step(frame(said[1]))
    with pytest.raises(RefusedError) as refused:
        dial.step(frame(said[3]))
    assert (refused.value.why, dial.is_done) == ("secret", False)


def test_a_proof_that_is_sent_back_to_its_maker_is_none():
    dial = Dial(SECRET, hello(), "there")
    answer = frame(dial.step(frame(frame_bytes(0, Kind.CHALLENGE, NONCE))))
    mirrored = frame_bytes(0, Kind.WELCOME, [msgspec.msgpack.decode(answer.body)])
    with pytest.raises(RefusedError):
        dial.step(frame(mirrored))


def test_reasons_that_somebody_makes_up_who_has_proved_nothing_are_counted_as_one():
    """Each would be a series of its own, and a line of the log."""
    for number in range(3):
        with pytest.raises(RefusedError) as refused:
            Dial(SECRET, hello(), "there").step(frame(frame_bytes(0, Kind.REFUSED, [f"made up {number}", "for you"])))
        assert refused.value.why == OTHER


def test_who_proves_nothing_is_told_nothing():
    """Before the proof there is a nonce, and after a wrong one a reason: no name, no epoch, nothing that the secret went into."""
    accept = Accept(OTHER_NONCE, "here")
    assert accept.step(frame(Dial(b"a guess", hello(), "there").opening()), OWN) == frame_bytes(
        0, Kind.CHALLENGE, OTHER_NONCE
    )
    with pytest.raises(RefusedError) as refused:
        accept.step(frame(frame_bytes(0, Kind.PROOF, bytes(PROOF_BYTES))), OWN)
    told = refusal(refused.value)
    assert not any(word in told for word in (b"installation\xa0", b"member", SECRET))


@pytest.mark.parametrize(
    "said",
    [
        frame_bytes(0, Kind.PROOF, bytes(PROOF_BYTES)),  # before any hello
        frame_bytes(0, Kind.HELLO, [VERSION, "installation"]),
        frame_bytes(0, Kind.HELLO, hello(nonce=b"short")),
        frame_bytes(1, Kind.BEAT, [1]),
        frame_bytes(0, Kind.ANSWER, None),
    ],
)
def test_an_acceptor_reads_nothing_but_a_hello(said: bytes):
    with pytest.raises(ProtocolError):
        Accept(OTHER_NONCE, "here").step(frame(said), OWN)


@pytest.mark.parametrize(
    "said",
    [
        frame_bytes(0, Kind.WELCOME, [bytes(PROOF_BYTES)]),
        frame_bytes(0, Kind.CHALLENGE, b"short"),
        frame_bytes(0, Kind.BYE, ""),
    ],
)
def test_a_caller_reads_nothing_but_a_challenge(said: bytes):
    with pytest.raises(ProtocolError):
        Dial(SECRET, hello(), "there").step(frame(said))


def test_a_second_hello_or_challenge_is_refused():
    dial, accept = Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here")
    challenge = accept.step(frame(dial.opening()), OWN)
    dial.step(frame(challenge))
    with pytest.raises(ProtocolError):
        dial.step(frame(challenge))
    with pytest.raises(ProtocolError):
        accept.step(frame(dial.opening()), OWN)


def test_a_hello_of_which_one_byte_was_changed_makes_no_link():
    """Whatever somebody on the way changes, one of the two refuses; each byte is tried, with its lowest, a middle and its highest bit."""
    lengths = [len(each) for each in talk(Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here"))]
    for which, length in enumerate(lengths):
        for at in range(4, length):
            for by in (1, 16, 128):
                dial, accept = Dial(SECRET, hello(), "there"), Accept(OTHER_NONCE, "here")
                with pytest.raises((RefusedError, ProtocolError)):
                    changed_talk(dial, accept, which, at, by)


def changed_talk(dial: Dial, accept: Accept, which: int, at: int, by: int) -> None:
    """All that is said, of which one byte of one part is another."""
    said, place = dial.opening(), 0
    while said:
        if place == which:
            said = said[:at] + bytes([said[at] ^ by]) + said[at + 1 :]
        said = accept.step(frame(said), OWN) if place % 2 == 0 else dial.step(frame(said))
        place += 1


def test_the_two_sides_proofs_differ():
    assert proof(SECRET, b"dials", b"x") != proof(SECRET, b"accepts", b"x")
    assert len(proof(SECRET, b"dials", b"x")) == PROOF_BYTES
