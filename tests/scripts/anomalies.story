# What isolation is for, one anomaly after the other. Each reader below would see it, if it could happen.
create orders
create invoices
create parcels
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800

# Dirty read: what is not committed, and what never will be.
begin A
publish orders dirty tx=A
poll orders as=committed
abort A
poll orders as=committed
---
@0/0
waits for A
ABORTED
nothing

# Non-repeatable read: a snapshot reads the same for ever.
begin reader
begin B
store orders b tx=B
commit B
publish orders plain
poll orders as=reader
poll orders as=committed
---
COMMITTED
@0/2
waits for B
@0/1<0/0 b
@0/2 plain

# Torn commit: in one snapshot a transaction is in all its topics or in none.
begin before
begin C
store orders c tx=C
store invoices c tx=C
commit C parcels=c
begin after
poll orders as=before after=@0/1
poll invoices as=before
poll parcels as=before
poll orders as=after after=@0/1
poll invoices as=after
poll parcels as=after
---
COMMITTED
@0/1<0/0 b
@0/2 plain
waits for C
waits for C
waits for C
@0/1<0/0 b
@0/2 plain
@0/3<0/0 c
@0/0<0/0 c
@0/0 c

# Lost update: of two transactions that changed the same, the second to commit loses, and nothing of it shows.
begin D
begin E
changes D stock/chair
changes E stock/chair
commit D orders=d
commit E orders=e
commit E orders=e
abort E
poll orders as=committed after=@0/3
---
COMMITTED
error: transaction_conflict
error: transaction_conflict
ABORTED
@0/3<0/0 c
@0/4 d

# A commit that was delayed until its transaction had timed out does not happen after all.
begin F timeout=1s
store orders f tx=F
advance 1s
expire
commit F orders=f
poll orders as=committed after=@0/3
---
1 ended
error: transaction_ended
@0/3<0/0 c
@0/4 d

# Own writes are seen, others' are not.
begin G
begin H
publish orders g tx=G
publish orders h tx=H
poll orders as=G after=@0/4
poll orders as=H after=@0/4
commit G
commit H
poll orders as=committed after=@0/4
---
@1000/0
@1000/1
@1000/0 g
waits for H
waits for G
COMMITTED
COMMITTED
@1000/0 g
@1000/1 h

# Nothing appears behind a reader: what commits later comes later, however early it began.
begin I
publish orders i1
begin J
store orders j tx=J
store orders i2 tx=I
commit J
commit I
poll orders as=committed after=@1000/1
---
@1000/2
COMMITTED
COMMITTED
@1000/2 i1
@1000/3<1000/0 j
@1000/4<1000/0 i2
