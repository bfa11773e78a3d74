"""Every call of Tephra's service and every exception, by a Thrift client over a socket."""

from __future__ import annotations

import pytest
from thriftpy2.thrift import TApplicationException

from basalt.thrift import calls
from basalt.thrift.wire import METHODS, types
from basalt.transactions.rules.transaction import State
from basalt_engine.snapshot import PointerRuns
from tests.control.thrift.conftest import Serving

SHORT, LONG = 1, 2
INTERNAL_ERROR = 6
NO_SHORT = (1 << 63) - 1


def test_a_transaction_alone_has_empty_lists_and_its_id_as_write_pointer(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
    assert tx.id == tx.writePointer
    assert tx.readPointer < tx.id
    assert (tx.invalids, tx.inProgress, tx.checkpointWritePointers) == ([], [], [])
    assert (tx.type, tx.visibilityLevel, tx.firstShort) == (SHORT, 1, NO_SHORT)


def test_each_way_to_start_gives_the_kind_owner_and_deadline_that_it_names(serving: Serving):
    with serving.client() as client:
        started = [
            (client.startShort(), "", 30_000, SHORT),
            (client.startShortTimeout(5), "", 5_000, SHORT),
            (client.startShortWithTimeout(6), "", 6_000, SHORT),
            (client.startShortClientId("a@b"), "a@b", 30_000, SHORT),
            (client.startShortWithClientIdAndTimeOut("a@b", 7), "a@b", 7_000, SHORT),
            (client.startLong(), "", 86_400_000, LONG),
            (client.startLongClientId("c"), "c", 86_400_000, LONG),
        ]
    for tx, owner, timeout_ms, kind in started:
        known = serving.services.transactions.state.get(tx.id)
        assert (known.owner, known.deadline_ms - known.began_ms, int(known.kind), tx.type) == (
            owner,
            timeout_ms,
            kind,
            kind,
        )
        assert known.external_writes, "its client writes elsewhere"


def test_what_is_in_progress_and_invalid_at_a_start_is_in_its_lists(serving: Serving):
    with serving.client() as client:
        failed, open_one = client.startShort(), client.startShort()
        assert client.invalidateTx(failed.id) is True
        tx = client.startShort()
    assert tx.invalids == [failed.id]
    assert tx.inProgress == [open_one.id]
    assert tx.firstShort == open_one.id


def test_a_run_of_failed_writers_is_in_no_list_for_nobody_writes_cells_under_one(serving: Serving):
    with serving.client() as client:
        failed = client.startShort()
        client.invalidateTx(failed.id)
        serving.clock.advance(1)
        last = client.startShort().id
        run = PointerRuns([(failed.id + 1, failed.id + 4_096)])
        assert last > failed.id + 4_096
        assert serving.do(lambda services: services.transactions.restore((), run)) == 4_096
        assert client.startShort().invalids == [failed.id]
        assert client.invalidTxSize() == 1
        assert client.truncateInvalidTx({failed.id, failed.id + 5}).value is True, (
            "a pointer of a run may be named all the same"
        )
    assert len(serving.do(lambda services: services.transactions.manager_snapshot()).view.invalid) == 4_095


@pytest.mark.parametrize("timeout", [0, -1, 601, 1 << 30])
def test_a_bad_time_out_is_an_illegal_argument(serving: Serving, timeout: int):
    with serving.client() as client:
        for call in (
            lambda: client.startShortWithTimeout(timeout),
            lambda: client.startShortWithClientIdAndTimeOut("a", timeout),
        ):
            with pytest.raises(types.TGenericException) as caught:
                call()
            assert caught.value.originalExceptionClass == "java.lang.IllegalArgumentException"
            assert str(timeout) in caught.value.message
        with pytest.raises(TApplicationException) as refused:
            client.startShortTimeout(timeout)  # Tephra declares nothing for this one
        assert refused.value.type == INTERNAL_ERROR
        assert client.status() == "OK", "the connection goes on"


def test_a_client_id_that_is_missing_or_not_printable_is_an_illegal_argument(serving: Serving):
    with serving.client() as client:
        for bad in (None, "a\nb", "x" * 256):
            for call in (client.startLongClientId, client.startShortClientId):
                with pytest.raises(types.TGenericException) as caught:
                    call(bad)
                assert caught.value.originalExceptionClass == "java.lang.IllegalArgumentException"


def test_a_commit_makes_the_next_start_read_it(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
        client.canCommitOrThrow(tx.id, {b"row"})
        client.commitOrThrow(tx.id, tx.writePointer)
        after = client.startShort()
    assert after.readPointer == tx.id
    assert serving.services.transactions.state.outcome(tx.id).state is State.COMMITTED


def test_the_older_calls_answer_true(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
        assert client.canCommitTx(tx, {b"row"}).value is True
        assert client.commitTx(tx).value is True


def test_the_later_committer_learns_what_it_lost_and_to_whom(serving: Serving):
    with serving.client() as client:
        first, second = client.startShortClientId("first"), client.startShortClientId("second")
        client.canCommitOrThrow(first.id, {b"row\x00\\", b"other"})
        client.commitOrThrow(first.id, first.id)
        with pytest.raises(types.TTransactionConflictException) as caught:
            client.canCommitOrThrow(second.id, {b"row\x00\\"})
        assert caught.value.transactionId == second.id
        assert caught.value.conflictingKey == "row\\x00\\x5C"
        assert caught.value.conflictingClient == "first"
        with pytest.raises(types.TTransactionConflictException) as again:
            client.commitOrThrow(second.id, second.id)
        assert again.value.conflictingClient == "first"
        assert client.canCommitTx(second, {b"free"}).value is False, "it is doomed"
        assert client.commitTx(second).value is False
        client.abortTx(second)


def test_commit_repeats_the_check(serving: Serving):
    with serving.client() as client:
        first, second = client.startShort(), client.startShort()
        for tx in (first, second):
            client.canCommitOrThrow(tx.id, {b"row"})
        client.commitOrThrow(first.id, first.id)
        with pytest.raises(types.TTransactionConflictException):
            client.commitOrThrow(second.id, second.id)


def test_a_second_change_set_replaces_the_first(serving: Serving):
    with serving.client() as client:
        first, second = client.startShort(), client.startShort()
        client.canCommitOrThrow(first.id, {b"row"})
        client.canCommitOrThrow(first.id, {b"elsewhere"})
        client.commitOrThrow(first.id, first.id)
        client.canCommitOrThrow(second.id, {b"row"})
        client.commitOrThrow(second.id, second.id)


def test_long_transactions_take_no_part_in_conflicts(serving: Serving):
    with serving.client() as client:
        long_one, short_one = client.startLong(), client.startShort()
        client.canCommitOrThrow(long_one.id, {b"row"})
        client.commitOrThrow(long_one.id, long_one.id)
        client.canCommitOrThrow(short_one.id, {b"row"})
        client.commitOrThrow(short_one.id, short_one.id)


def test_what_is_not_in_progress_is_said_to_be_so(serving: Serving):
    with serving.client() as client:
        ended = client.startShort()
        client.abortTx(ended)
        for tx_id in (ended.id, 4):
            ended.id = tx_id
            for call in (
                lambda tx=ended: client.canCommitOrThrow(tx.id, set()),
                lambda tx=ended: client.commitOrThrow(tx.id, tx.id),
                lambda tx=ended: client.canCommitTx(tx, set()),
                lambda tx=ended: client.commitTx(tx),
                lambda tx=ended: client.checkpoint(tx),
            ):
                with pytest.raises(types.TTransactionNotInProgressException) as caught:
                    call()
                assert str(tx_id) in caught.value.message
            assert client.invalidateTx(tx_id) is False
            client.abortTx(ended)  # as with Tephra: nothing is left to change


def test_a_commit_may_be_repeated_and_what_is_committed_is_not_aborted(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
        for _ in range(2):
            client.commitOrThrow(tx.id, tx.id)
        with pytest.raises(TApplicationException, match="was committed"):
            client.abortTx(tx)
        assert client.invalidateTx(tx.id) is False


def test_a_change_set_over_the_limits_is_a_size_exception(small: Serving):
    with small.client() as client:
        tx = client.startShort()
        client.canCommitOrThrow(tx.id, {b"1", b"2", b"3"})
        for changes in ({b"1", b"2", b"3", b"4"}, {b"x" * 1_025}):
            with pytest.raises(types.TGenericException) as caught:
                client.canCommitOrThrow(tx.id, changes)
            assert caught.value.originalExceptionClass == "org.apache.tephra.TransactionSizeException"
            assert client.canCommitTx(tx, changes).value is False
        client.canCommitOrThrow(tx.id, {b"x" * 1_024})
        client.commitOrThrow(tx.id, tx.id)


def test_the_abort_of_a_short_one_leaves_the_lists_that_of_a_long_one_goes_to_the_invalid_list(serving: Serving):
    with serving.client() as client:
        short_one, long_one = client.startShort(), client.startLong()
        client.abortTx(short_one)
        client.abortTx(long_one)
        tx = client.startShort()
        assert (tx.invalids, tx.inProgress) == ([long_one.id], [])
        assert client.invalidTxSize() == 1


def test_one_that_timed_out_is_invalid_with_all_its_checkpoints_until_its_client_has_undone_it(serving: Serving):
    with serving.client() as client:
        tx = client.checkpoint(client.startShortTimeout(5))
        serving.clock.advance(5_000)
        serving.do(lambda services: services.transactions.expire())
        assert client.startShort().invalids == [tx.id, tx.writePointer]
        with pytest.raises(types.TTransactionNotInProgressException):
            client.commitOrThrow(tx.id, tx.writePointer)
        client.abortTx(tx)
        assert client.invalidTxSize() == 0


def test_a_checkpoint_keeps_the_snapshot_and_the_level_and_writes_under_a_new_pointer(serving: Serving):
    with serving.client() as client:
        before, tx = client.startShort(), client.startShort()
        client.commitOrThrow(before.id, before.id)
        tx.visibilityLevel = 2
        first = client.checkpoint(tx)
        second = client.checkpoint(first)
    assert (first.id, first.readPointer, first.inProgress) == (tx.id, tx.readPointer, [before.id])
    assert tx.id < first.writePointer < second.writePointer
    assert second.checkpointWritePointers == [first.writePointer, second.writePointer]
    assert (first.visibilityLevel, second.visibilityLevel) == (2, 2)


def test_ids_are_taken_off_the_invalid_list_by_name_and_by_time(serving: Serving):
    with serving.client() as client:
        ids = []
        for _ in range(3):
            ids.append(client.startShort().id)
            client.invalidateTx(ids[-1])
            serving.clock.advance(1_000)
        assert client.truncateInvalidTx({ids[0], 17}).value is True
        assert client.truncateInvalidTx({ids[0], 17}).value is False
        assert client.startShort().invalids == ids[1:]
        open_one = client.startShort()
        assert client.truncateInvalidTxBefore(ids[2] // 1_000_000).value is True
        assert client.truncateInvalidTxBefore(ids[2] // 1_000_000).value is False
        assert client.startShort().invalids == ids[2:]
        with pytest.raises(types.TInvalidTruncateTimeException):
            client.truncateInvalidTxBefore(open_one.id // 1_000_000 + 1_000)
        for far in (-1, 0, -(1 << 63)):
            assert client.truncateInvalidTxBefore(far).value is False
        with pytest.raises(types.TInvalidTruncateTimeException):
            client.truncateInvalidTxBefore((1 << 63) - 1)


def test_a_truncation_of_more_than_one_log_entry_takes_is_one_call(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "EDIT_POINTERS_MAX", 2)
    monkeypatch.setattr(calls, "ENTRIES_MAX", 5)
    with serving.client() as client:
        ids = []
        for _ in range(6):
            ids.append(client.startShort().id)
            client.invalidateTx(ids[-1])
        with pytest.raises(TApplicationException, match="6"):
            client.truncateInvalidTx(set(ids))
    with serving.client() as client:
        assert client.startShort().invalids == ids
        assert client.truncateInvalidTx(set(ids[:5])).value is True
        assert client.startShort().invalids == ids[5:]
    (done,) = serving.do(lambda services: services.audit.newest(10))
    assert done.outcome.startswith("5 writers forgotten")


def test_a_truncation_leaves_a_line_in_the_audit(serving: Serving):
    with serving.client() as client:
        lost = client.startShort().id
        client.invalidateTx(lost)
        client.truncateInvalidTx({lost})
        open_one = client.startShort()
        with pytest.raises(types.TInvalidTruncateTimeException):
            client.truncateInvalidTxBefore(open_one.id // 1_000_000 + 1_000)
    refused, done = serving.do(lambda services: services.audit.newest(10))
    assert (done.act, done.what, done.address) == ("truncate", "1 writers of the invalid list", "thrift")
    assert done.outcome.startswith("1 writers forgotten")
    assert refused.outcome.startswith("refused: ")


def test_any_time_may_be_named_to_truncate_before(serving: Serving):
    with serving.client() as client:
        client.invalidateTx(client.startShort().id)
        assert client.truncateInvalidTxBefore(-(1 << 63)).value is False
        assert client.truncateInvalidTxBefore((1 << 63) - 1).value is True
        assert client.invalidTxSize() == 0


def test_a_state_is_only_reset_where_the_settings_allow_it(serving: Serving, small: Serving):
    with serving.client() as client:
        tx = client.startShort()
        with pytest.raises(TApplicationException, match=r"transactions\.allow_reset"):
            client.resetState()
        client.commitOrThrow(tx.id, tx.id)
    with small.client() as client:
        tx = client.startShort()
        client.invalidateTx(client.startShort().id)
        client.canCommitOrThrow(tx.id, {b"row"})
        client.resetState()
        assert client.invalidTxSize() == 0
        with pytest.raises(types.TTransactionNotInProgressException):
            client.commitOrThrow(tx.id, tx.id)
        assert client.startShort().id > tx.id


def test_prune_now_starts_the_job_and_does_not_wait_for_it(serving: Serving):
    with serving.client() as client:
        assert client.pruneNow() is None

    async def runs(services):
        for _ in range(200):
            found = await services.scheduler.history("prune")
            if found:
                return found
        return await services.scheduler.run_now("prune")

    assert serving.do(runs)


def test_status_tells_a_server_that_stops(serving: Serving):
    with serving.client() as client:
        assert client.status() == "OK"
        serving.services.stop_waiting()
        assert client.status() == "NOTOK"


def test_every_method_is_called_somewhere_above(request: pytest.FixtureRequest):
    text = request.path.read_text() + request.path.with_name("test_calls_state_snapshot.py").read_text()
    assert [name for name in METHODS if f"client.{name}" not in text] == []


@pytest.mark.parametrize("end", ["abortTx", "invalidateTx"])
def test_the_read_pointer_passes_what_came_to_nothing_with_the_next_commit_only(serving: Serving, end: str):
    with serving.client() as client:
        committed, nothing = client.startShort(), client.startShort()
        client.commitOrThrow(committed.id, committed.writePointer)
        subject = nothing if end == "abortTx" else nothing.id
        getattr(client, end)(subject)
        later = client.startShort()
        assert later.readPointer == committed.writePointer < nothing.writePointer
        client.commitOrThrow(later.id, later.writePointer)
        assert client.startShort().readPointer == later.writePointer > nothing.writePointer
