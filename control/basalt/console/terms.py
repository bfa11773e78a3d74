"""The words of the console and what they mean, for who meets one on a page: each is a link to `/console/terms`.

The meanings are those of docs/glossary.md, to the letter, so that a word has one meaning here and there.
"""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.console.page import TERMS_PATH, Visit, login_path, redirect
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

TERMS = {
    "abort": "Decide against a transaction: none of its messages will ever be seen by a transactional reader.",
    "attempt": (
        "Of a message in a group: it was dealt and came back unacknowledged. Counted in the log, so that a crash "
        "adds none; not counted where a transaction holds an earlier message of its key."
    ),
    "audit": "What operators did by hand: one line for each act, with who and why.",
    "change set": (
        "What a transaction says that it changes, as opaque keys. Of two with a key in common the second to "
        "commit fails."
    ),
    "claim": (
        "Of a group: messages that were dealt to a member, which nobody else gets until it ends. It is known in "
        "memory only and is no lock: it keeps members out of each other's way."
    ),
    "commit": "Make all writes of a transaction visible, in every topic at once.",
    "dead letter": (
        "A message that came back too often or was rejected, moved to the topic that its group names for them, "
        "with the reason in its headers."
    ),
    "decided": (
        "Of a snapshot: up to which write pointer every writer has committed, was undone, or is on the invalid list."
    ),
    "end of stream": "A marker: nothing more comes from its task.",
    "epoch": "The term of a leader, an owner's time with a shard, or which of a session's runs holds it. It only rises.",
    "external writes": (
        "Writes of a transaction outside Basalt, under its pointer. Only its client can undo them, so without a "
        "commit the transaction becomes invalid."
    ),
    "floor": "The id up to which a group has acknowledged everything.",
    "generation": (
        "The incarnation of a topic. It rises when a topic is deleted and created again, so old messages never "
        "come back."
    ),
    "grant": (
        "Of rights: a subject (a principal, a group of an identity provider, a role, everyone), verbs, and a "
        "resource. It only allows."
    ),
    "group": (
        "A named reader of one topic whose progress the server keeps, and whose messages any number of members "
        "share: shared, keyed (order per key), stream (one at a time) or tracked (its position is reported by "
        "somebody else)."
    ),
    "in-progress list": "The transactions that are open at a moment; their writes are not visible.",
    "invalid list": "Writers that failed without a clean roll back; their writes stay hidden until pruned. Single write pointers, and runs of them.",
    "isolation": (
        "Which messages a fetch sees: those of no transaction or of a committed one (committed, the default "
        "everywhere), or all of them (uncommitted)."
    ),
    "lag": "Of a group: how far it is behind, the messages that it has not acknowledged, and the age of the oldest. Of the event loop: by how much later than asked for it calls a timer; all that the server does waits as long.",
    "leader": "The one server that holds the lease of a store, writes its log and deals its shards. The others own topics as it does, and are its standbys.",
    "lease": "How long a membership, of a group or a cluster, or a leader's term lasts without a sign of life.",
    "link": "The connection of a member to the leader, over which each asks the other. It makes servers look at the rows sooner, and decides nothing.",
    "load": "Of a shard or a server: calls a second, where the bytes of 32 KiB count as another call, as a mean that forgets half in 30 seconds. Shards move so that each server has its share of it.",
    "login": "A token that was made with another credential, and ends soon, or with that.",
    "map": "Of owners: the one row that says which member owns which shard, under which epoch. Each replacement has the next version.",
    "marker": "What a producing task says in a topic beside its messages: a watermark or an end of stream. Markers.",
    "member": (
        "Of a cluster: one run of a server on a shared store, from its first row until it stops or is taken for dead. Of a group: one of "
        "those who work for it: a name, and an epoch that tells two processes of that name apart."
    ),
    "message id": "20 bytes that name a message and sort as every reader sees it: row keys.",
    "namespace": "The first half of a topic's name. It needs no creation.",
    "one-shot transaction": "One request that begins, writes and commits.",
    "owner": (
        "Of a transaction: the principal that began it, and may act on it. The owner in a begin is a label that "
        "its client gives itself, and proves nothing. Of a topic or table: the server that the map of owners gives its shard to. "
        "Of transactions it knows what the coordinator told it."
    ),
    "parked": (
        "Of a message in a group: it came back too often, and no topic takes it as a dead letter. Kept, shown, "
        "and dealt to nobody until it is unparked."
    ),
    "participant": (
        "What commits and rolls back with a transaction: a topic with stored payloads, a table, an object of the "
        "user's own."
    ),
    "payload": "The bytes of a message; their meaning is their owner's.",
    "pending": (
        "Of a message in a group: an open transaction acknowledges it. Its commit makes that true, its end "
        "without one gives the message back."
    ),
    "principal": "Who asks, as kind:name; the kind says how that was proved. anonymous, where nobody has to.",
    "producer": (
        "Who numbers its messages in a topic, so that a publish that is sent twice is there once. Named: the "
        "server keeps its number over restarts of it."
    ),
    "pruning": "Shrinking the invalid list, once no row of an invalid writer is left.",
    "quota": (
        "How much of a server a principal may use: so much a second, or so many at a time. A rule says it, of a "
        "principal, a group, a role, everyone, or in the settings."
    ),
    "read pointer": "The newest commit that a transaction may see.",
    "region": "HBase's unit of distribution: a range of rows on one server.",
    "region report": "What the coprocessor tells of a region: its files, and which writers' rows each may hold.",
    "retention": "The rule that says which rows may be dropped, and why.",
    "right": "A verb on a resource: what each call takes.",
    "role": "A name for principals and groups that are granted rights together.",
    "roll back": "Undo the rows of a writer physically, as opposed to abort, which decides that they do not count.",
    "seek": "Let a group go on elsewhere: what lies before is acknowledged, all from there on is not.",
    "segment": ("What one attempt at a task stored under a write pointer of its own. A commit names those that count."),
    "session": (
        "A name under which runs of a job follow each other: the newest run fences those before it, and a version "
        "of the work is committed once."
    ),
    "shard": (
        "One of 1,024 parts of all topics and transactional tables, by their names. A server owns whole shards, and "
        "regions refuse the former owner of one."
    ),
    "slot": "One of 1,024 parts into which a keyed group divides its keys. Members share the slots evenly.",
    "snapshot": (
        "The read pointer, write pointer, in-progress and invalid lists of one moment. Not a copy of data: that "
        "is a checkpoint."
    ),
    "stable end": "The id at or below which nothing can appear or change any more.",
    "standby": "A server that does not lead, and may take the lead. It owns topics meanwhile, unless cluster.share is off, and passes other calls on.",
    "step": "One part of a pipeline: from topics, through a transformation, into a topic.",
    "superseded": "Of a version of a cell: every present and future reader sees a newer one, or its deletion.",
    "table": (
        "As a user's thing: a transactional table, rows of cells that transactions read and write. As the "
        "store's: one of the ordered maps of rows that everything lies in."
    ),
    "task": "One of those that write a topic and say, by markers, how far they are.",
    "term": "The time in which one server leads, under one epoch.",
    "token": "A credential that Basalt makes itself: basalt_….",
    "tombstone": "A version of a cell that says: deleted.",
    "topic": "One ordered log of messages.",
    "truncate": (
        "Of a topic: put what was published before a time out of every reader's reach, for ever. Of the invalid "
        "list: take writers off it, whatever rows of theirs are left."
    ),
    "watermark": (
        "A marker: its task gives no message with an older event time after it. Of a topic: the lowest of its tasks'."
    ),
    "write pointer": "The number that a transaction writes under. It only rises, over restarts too; that of a one-shot transaction is of a loan, and may be some seconds older.",
}

# The states of a transaction, and what each means for who reads.
STATES = {
    "OPEN": "It may read and write. Readers of committed messages stop before its rows.",
    "COMMITTING": "Its commit is decided on and its rows are being written. Readers stop there for a moment.",
    "COMMITTED": "Everybody sees what it wrote.",
    "ABORTING": "It was given up, and what it wrote is being undone. Readers stop before rows of it that are left.",
    "ABORTED": "Nothing that it wrote is there any more.",
    "INVALID": "It ended without a clean roll back: what it wrote stays hidden, and its write pointers stay on the invalid list until pruning finds no row of theirs.",
}

route = RouteTable("console")


@route("GET", TERMS_PATH, PUBLIC)
async def terms(request: Request) -> Response:
    """List the words and the states."""
    visit = Visit(request)
    if visit.must_sign_in:
        return redirect(login_path(request))
    return visit.html("terms.html", title="Terms", terms=TERMS, states=STATES)
