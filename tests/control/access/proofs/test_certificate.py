"""The names of certificates: what `ssl` reads of real ones, and what becomes of names that were made to be taken for others."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from basalt.access.proofs.certificate import ClientCertificate, distinguished_name, prove
from basalt.errors import UnauthenticatedError
from tests.certificates import Authority, name

NOW_MS = 1_795_000_000_000
NOT_AFTER = "Jan 19 03:14:07 2038 GMT"


def certificate(*subject: tuple[tuple[str, str], ...], names: tuple[tuple[str, str], ...] = ()) -> ClientCertificate:
    fields = {
        "subject": subject, "subjectAltName": names, "issuer": ((("commonName", "ca"),),), "serialNumber": "0AFE",
        "notAfter": NOT_AFTER,
    }  # fmt: skip
    return ClientCertificate(fields, b"")


def cn(value: str) -> tuple[tuple[str, str], ...]:
    return (("commonName", value),)


def ou(value: str) -> tuple[tuple[str, str], ...]:
    return (("organizationalUnitName", value),)


def read(authority: Authority, subject: x509.Name | str, **given: Any) -> ClientCertificate:
    """A real certificate, as `ssl` reads that of a peer."""
    issued = authority.client(subject, **given)
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(issued.certificate, issued.key)
    server.load_cert_chain(issued.certificate, issued.key)
    server.load_verify_locations(authority.file)
    server.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(5):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ClientCertificate(sides[1].getpeercert(), issued.der)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_the_subject_is_written_with_its_last_part_first(authority: Authority):
    subject = name(
        (NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Shop"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "data"), (NameOID.COMMON_NAME, "etl")
    )  # fmt: skip
    proof = prove(read(authority, subject), "subject", NOW_MS)
    assert str(proof.principal) == "cert:CN=etl,OU=data,O=Shop,C=DE"
    assert proof.principal.groups == frozenset()
    assert proof.only is None


def test_a_part_of_several_pairs_and_those_that_rfc_4514_does_not_list_are_told_apart(authority: Authority):
    subject = x509.Name(
        [
            x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example")]),
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(NameOID.COMMON_NAME, "etl"), x509.NameAttribute(NameOID.USER_ID, "7")]
            ),
            x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@example.org")]),
        ]
    )
    written = str(prove(read(authority, subject), "subject", NOW_MS).principal)
    assert written in (
        "cert:emailAddress=a@example.org,CN=etl+UID=7,DC=example",
        "cert:emailAddress=a@example.org,UID=7+CN=etl,DC=example",
    )


def test_each_place_that_a_name_may_be_in(authority: Authority):
    read_of = read(authority, "etl", dns=("etl.example.org",), uris=("spiffe://example.org/etl",))
    principals = {kind: str(prove(read_of, kind, NOW_MS).principal) for kind in ("subject", "cn", "dns", "uri")}
    assert principals == {
        "subject": "cert:CN=etl", "cn": "cert:etl", "dns": "cert:etl.example.org", "uri": "cert:spiffe://example.org/etl",
    }  # fmt: skip


def test_the_credential_of_the_audit_is_serial_number_and_issuer():
    proof = prove(certificate(cn("etl")), "subject", NOW_MS)
    assert proof.credential == "cert 0AFE of CN=ca"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("subject", certificate(names=(("DNS", "a"),))),
        ("cn", certificate(ou("data"))),
        ("cn", certificate(cn("a"), cn("b"))),
        ("cn", certificate((("commonName", "a"), ("commonName", "b")))),
        ("dns", certificate(cn("a"))),
        ("dns", certificate(cn("a"), names=(("DNS", "a"), ("DNS", "b")))),
        ("dns", certificate(cn("a"), names=(("DNS", "*.example.org"),))),
        ("uri", certificate(cn("a"), names=(("DNS", "a"), ("IP Address", "127.0.0.1")))),
        ("uri", certificate(cn("a"), names=(("URI", "spiffe://a"), ("URI", "spiffe://a")))),
    ],
)  # fmt: skip
def test_none_and_more_than_one_candidate_are_nobody(kind: Any, given: ClientCertificate):
    with pytest.raises(UnauthenticatedError, match="is invalid: it"):
        prove(given, kind, NOW_MS)


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "ab\u202ecba", "a\u200bb", " a", "a ", "", "n" * 256])
def test_names_that_no_principal_may_have_are_nobody(bad: str):
    with pytest.raises(UnauthenticatedError, match="is invalid"):
        prove(certificate(cn(bad)), "cn", NOW_MS)
    with pytest.raises(UnauthenticatedError, match="is invalid"):
        prove(certificate(names=(("URI", bad),)), "uri", NOW_MS)


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "ab\u202ecba", "n" * 256])
def test_a_part_of_the_subject_or_the_issuer_that_cannot_be_shown_is_nobody(bad: str):
    with pytest.raises(UnauthenticatedError, match="is invalid"):
        prove(certificate(ou(bad), cn("etl")), "subject", NOW_MS)


def test_a_cn_cannot_pass_for_another_part():
    assert distinguished_name((cn("etl,OU=data"),)) == r"CN=etl\,OU=data"
    assert distinguished_name((ou("data"), cn("etl"))) == "CN=etl,OU=data"
    assert distinguished_name((cn('#a"b+c;d<e>f\\g'),)) == r"CN=\#a\"b\+c\;d\<e\>f\\g"
    assert distinguished_name((cn(" a "),)) == r"CN=\ a\ "


VALUES = st.text(alphabet='ab ,+=#\\";<>CNOU', max_size=8)
SUBJECTS = st.lists(
    st.lists(st.tuples(st.sampled_from(["commonName", "organizationalUnitName", "1.2.3"]), VALUES), min_size=1, max_size=2), max_size=3
)  # fmt: skip


@given(SUBJECTS, SUBJECTS)
def test_two_subjects_that_differ_are_two_names(one: Any, other: Any):
    assert (distinguished_name(one) == distinguished_name(other)) == (one == other)


def test_a_certificate_counts_until_its_last_moment_and_no_longer():
    until_ms = 1_000 * ssl.cert_time_to_seconds(NOT_AFTER)
    assert prove(certificate(cn("etl")), "subject", until_ms - 1).until_ms == until_ms
    with pytest.raises(UnauthenticatedError, match="has expired"):
        prove(certificate(cn("etl")), "subject", until_ms)


def test_an_answer_tells_nothing_of_what_the_certificate_holds(tmp_path: Path):
    with pytest.raises(UnauthenticatedError) as refused:
        prove(certificate(cn("secret\n")), "cn", NOW_MS)
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"
