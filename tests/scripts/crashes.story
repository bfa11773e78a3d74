# A process that dies before its write has done nothing, and one that dies after it has done all of it.
create orders
create invoices
next-write die-before
publish orders lost
restart
poll orders
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
the server died
nothing

next-write die-after
publish orders kept
restart
poll orders
---
the server died
@0/0 kept

# A transaction goes on in the next process.
begin A
store orders a tx=A
restart
commit A invoices=a
poll orders as=committed
poll invoices as=committed
---
COMMITTED
@0/0 kept
@0/1<0/0 a
@0/0 a

# One whose commit died before it was written is still open.
begin B
store orders b tx=B
next-write die-before
commit B invoices=b request=r1
restart
outcome B
poll orders as=committed
commit B invoices=b request=r1
poll orders as=committed
poll invoices as=committed
---
the server died
OPEN
@0/0 kept
@0/1<0/0 a
COMMITTED
@0/0 kept
@0/1<0/0 a
@0/2<0/0 b
@0/0 a
@0/1 b

# One that aborts while the process dies is aborted by the next.
begin C
publish orders c tx=C
next-write die-after
abort C
restart
poll orders as=committed
commit C
---
@0/3
the server died
@0/0 kept
@0/1<0/0 a
@0/2<0/0 b
error: transaction_ended

# Places go on behind the newest one, within the same millisecond.
publish orders last
poll orders from=@0/1
---
@0/4
@0/1<0/0 a
@0/2<0/0 b
@0/3 c
@0/4 last

# So do write pointers, and what is remembered of ended transactions.
snapshot-the-log
restart
commit A
abort B
outcome C
---
COMMITTED
error: transaction_ended
ABORTED
