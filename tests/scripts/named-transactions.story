# Processes of one run begin by the same names, and share a transaction. Its segments lie apart.
create orders
create invoices
begin-by-name A run=monday version=1
begin-by-name B run=monday version=1
segment A1 A
segment B1 B
segment B2 B
store orders "first of a" "second of a" tx=A1
store orders "of b, in vain" tx=B1
store orders "of b" tx=B2
store invoices "40" tx=B2
poll orders as=committed
rows
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
joined A
nothing
0 message rows, 4 payload rows

# The commit publishes the segments that it lists, in that order. What was stored in vain is gone.
advance 10ms
publish orders "in between"
commit A segments=B2,A1 mark=orders:etl:700
poll orders as=committed
poll invoices as=committed
markers orders
rows
---
@10/0
COMMITTED
@10/0 in between
@10/1<0/0 of b
@10/2<0/0 first of a
@10/2<0/1 second of a
@10/0<0/0 40
watermark 700 (etl 700)
5 message rows, 3 payload rows

# Again it is the same commit, whatever it lists. It cannot be undone.
commit B segments=B1
abort A
poll orders after=@10/0 as=committed
---
COMMITTED
error: transaction_ended
@10/1<0/0 of b
@10/2<0/0 first of a
@10/2<0/1 second of a

# The version is done, for every run; the next one is not.
begin-by-name C run=monday version=1
begin-by-name C run=tuesday version=0
begin-by-name C run=monday version=2
---
committed before by A
committed before by A

# Another run takes over: what the one before had open is ended, and it cannot come back.
segment C1 C
store orders "too late" tx=C1
begin-by-name D run=tuesday version=2
rows
commit C segments=C1
store orders "much too late" tx=C1
begin-by-name C run=monday version=2
outcome C
---
5 message rows, 3 payload rows
error: session_fenced
error: session_fenced
error: session_fenced
ABORTED

# It holds over a restart, and so does what is open.
segment D1 D
store orders "of tuesday" tx=D1
restart
begin-by-name C run=monday version=2
begin-by-name E run=tuesday version=2
segment D2 D
store orders "and more" tx=D2
advance 10ms
commit D segments=D1,D2
poll orders after=@10/2 as=committed
begin-by-name E run=tuesday version=2
---
error: session_fenced
joined D
COMMITTED
@10/2<0/0 first of a
@10/2<0/1 second of a
@20/0<10/0 of tuesday
@20/1<10/0 and more
committed before by D

# No segments at all: nothing that was stored is published. A pointer of another transaction is none.
begin-by-name F run=tuesday version=3
segment F1 F
store orders "nobody wants it" tx=F1
commit F segments=C1
commit F segments=F1,F1
commit F segments=none orders="only this"
poll orders after=@10/2 as=committed
---
error: invalid_input
error: invalid_input
COMMITTED
@10/2<0/0 first of a
@10/2<0/1 second of a
@20/0<10/0 of tuesday
@20/1<10/0 and more
@20/2 only this

# What was published ahead of the commit cannot be left out.
begin-by-name G run=tuesday version=4
segment G1 G
publish orders "early" tx=G1
commit G segments=none
commit G segments=G1
poll orders after=@10/2 as=committed
---
@20/3
error: invalid_input
COMMITTED
@10/2<0/0 first of a
@10/2<0/1 second of a
@20/0<10/0 of tuesday
@20/1<10/0 and more
@20/2 only this
@20/3 early

# A time-out rolls it back, and the version can be begun again.
begin-by-name H run=tuesday version=5 timeout=1s
segment H1 H
store orders "for nothing" tx=H1
advance 1s
begin-by-name I run=tuesday version=5
commit H segments=H1
expire
outcome H
outcome I
abort I
begin-by-name J run=tuesday version=5
---
error: transaction_ended
0 ended
ABORTED
OPEN
ABORTED

# Whose versions they are is asked, once they are somebody's.
begin-by-name K run=tuesday version=6 counter_owner=q1
commit J segments=none
begin-by-name K run=tuesday version=6 counter_owner=q1
begin-by-name K run=wednesday version=6
---
error: session_foreign
COMMITTED
error: session_foreign
