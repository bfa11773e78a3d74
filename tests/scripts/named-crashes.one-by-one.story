# A commit with segments of which the outcome is lost did not happen, and the version is begun again.
create orders
begin-by-name A run=monday version=1
segment A1 A
segment A2 A
store orders "kept" tx=A1
store orders "lost" tx=A2
next-write die-before after=2
commit A segments=A1
restart
outcome A
poll orders as=committed
rows
begin-by-name B run=monday version=1
---
generation=1 onInvalid=drop spread=1 ttl=604800
the server died
ABORTED
nothing
1 message rows, 0 payload rows

# The rows were on their way, and the outcome not.
segment B1 B
segment B2 B
store orders "kept" tx=B1
store orders "lost" tx=B2
next-write die-after after=1
commit B segments=B1
restart
outcome B
poll orders as=committed
rows
begin-by-name C run=monday version=1
---
the server died
ABORTED
nothing
2 message rows, 0 payload rows

# With the outcome it is committed, though nobody was told.
segment C1 C
segment C2 C
store orders "kept" tx=C1
store orders "lost" tx=C2
next-write die-after after=2
commit C segments=C1
restart
outcome C
commit C segments=C2
poll orders as=committed
rows
begin-by-name D run=monday version=1
---
the server died
COMMITTED
COMMITTED
@0/2<0/0 kept
3 message rows, 1 payload rows
committed before by C

# Of a run that takes over the whole decision is there, or nothing of it.
begin-by-name D run=monday version=2
segment D1 D
store orders "of monday" tx=D1
next-write die-before
begin-by-name E run=tuesday version=2
restart
begin-by-name F run=monday version=2
next-write die-after
begin-by-name E run=tuesday version=2
restart
begin-by-name F run=monday version=2
begin-by-name E run=tuesday version=2
outcome D
rows
---
the server died
joined D
the server died
error: session_fenced
ABORTED
3 message rows, 1 payload rows
