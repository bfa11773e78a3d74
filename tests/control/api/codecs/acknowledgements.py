"""Any part `acknowledge` of a Work that means something, for the tests of both codecs."""

from __future__ import annotations

from hypothesis import strategies as st

from basalt.api.bodies.messages import Rejection, WorkAcknowledge

IDS = st.binary(min_size=20, max_size=20).filter(any)  # zeros are the place before all messages
LONGS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def acknowledgements(draw: st.DrawFn) -> WorkAcknowledge:
    """An entry whose ids are each in one list alone, and that leaves out of ranges alone."""
    seen = set[bytes]()
    ids, left_out, rejected = (
        [each for each in draw(st.lists(IDS, max_size=3)) if each not in seen and not seen.add(each)] for _ in range(3)
    )
    claims, up_to = draw(st.lists(st.integers(1, 2**63 - 1), max_size=3)), draw(st.none() | IDS)
    if not claims and up_to is None:
        ids, left_out = ids or ([] if rejected else [draw(IDS)]), []
    member = draw(st.sampled_from(["", "w1", "wörker 2"]))
    return WorkAcknowledge(
        draw(TEXTS), draw(TEXTS), draw(TEXTS), ids, up_to, member, draw(LONGS) if member else 0, draw(LONGS), claims,
        left_out, [Rejection(each, draw(TEXTS)) for each in rejected],
    )  # fmt: skip
