"""Whatever fails, and however often: what the server decided and what the participants keep agree in the end."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from basalt.client.transaction import commit_protocol
from basalt.client.transaction.commit_protocol import abort, commit
from basalt.client.transaction.open_transaction import PostCommitError
from basalt.errors import UnknownOutcomeError
from tests.control.client.participants_world import Interrupt, Recording, World

OWN = st.sampled_from(["raise", "interrupt"])
CALL = st.sampled_from(["refuse", "lost", "late", "gone", "fault", "interrupt"])
STEPS = {
    **{f"{name}.{step}": OWN for name in "abc" for step in ("start", "changes", "commit", "update", "post")},
    **{f"{name}.rollback": OWN | st.just("false") for name in "abc"},
    **dict.fromkeys(("canCommit", "commit", "abort", "invalidate", "get", "checkpoint", "participants"), CALL),
}


@st.composite
def failures(draw: st.DrawFn) -> dict[str, str]:
    steps = draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=4, unique=True))
    return {step: draw(STEPS[step]) for step in steps}


def add_c(world: World):
    late = Recording("c", world.journal, world.failures)

    def add(tx):
        world.participants["c"] = late
        yield from commit_protocol.add(tx, late)

    return add


def swallowing(plan):
    """The plan, by a caller who goes on whatever comes of it."""

    def tried(tx):
        try:
            yield from plan(tx)
        except Exception:
            pass

    return tried


@settings(max_examples=600, deadline=None)
@given(
    failures=failures(),
    hosted=st.sets(st.sampled_from("ab")),
    work=st.lists(
        st.sampled_from(
            ["add", "checkpoint", "commit", "abort", "swallow add", "swallow checkpoint", "swallow commit"]
        ),
        max_size=3,
    ),
    raising=st.sampled_from([None, None, KeyError("mine"), Interrupt("mine")]),
)
def test_the_server_and_the_participants_agree(failures, hosted, work, raising):
    world = World(failures, hosted="".join(sorted(hosted)))
    plans = {
        "add": add_c(world),
        "checkpoint": commit_protocol.checkpoint,
        "commit": commit,
        "abort": abort,
        "swallow add": swallowing(add_c(world)),
        "swallow checkpoint": swallowing(commit_protocol.checkpoint),
        "swallow commit": swallowing(commit),
    }
    world.block(*(plans[each] for each in work), raising=raising)
    promised = world.tx.outcome and world.tx.outcome.state
    world.server.settle()
    end = world.server.state
    event(f"{end}, {type(world.raised).__name__}")

    took_part = [each for each in world.participants.values() if each.pointers]
    kept = [each.kept for each in took_part]
    heard = [each.name for each in took_part if each.heard_commit]
    if end == "COMMITTED":
        assert set(kept) <= {"all"}, "somebody was rolled back under a commit"
        assert heard == [] or len(heard) == len(took_part)
    else:
        assert heard == [], "somebody heard of a commit that was none"
        assert promised != "COMMITTED"
    if end == "ABORTED":
        assert set(kept) <= {"nothing"} or not world.server.external_writes, (
            "an abort left something behind that is seen"
        )
    if isinstance(world.raised, PostCommitError) or (world.raised is None and promised == "COMMITTED"):
        assert end == "COMMITTED"
    if world.raised is None and not {"abort", "swallow commit"} & set(work):
        assert (end, heard) == ("COMMITTED", [each.name for each in took_part])
    if isinstance(world.raised, UnknownOutcomeError) and world.journal[-1] in ("get", "invalidate"):
        assert heard == []
