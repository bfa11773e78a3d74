# The store did what it was asked, and its answer was lost. The client cannot know, and asks again under the same request id.
create orders
create invoices
begin A
store orders a tx=A
next-write lose-answer
commit A invoices=a request=r1
commit A invoices=a request=r1
poll orders as=committed
poll invoices as=committed
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
COMMITTED
@0/0<0/0 a
@0/0 a

# The same, but it did not do it.
begin B
store orders b tx=B
next-write lose-write
commit B invoices=b request=r2
commit B invoices=b request=r2
poll orders as=committed
poll invoices as=committed
---
error: outcome_unknown
COMMITTED
@0/0<0/0 a
@0/2<0/0 b
@0/0 a
@0/2 b

# A one-shot transaction, and a begin.
next-write lose-answer
one-shot C orders=c invoices=c request=r3
one-shot C orders=c invoices=c request=r3
poll orders as=committed after=@0/1
poll invoices as=committed after=@0/1
---
error: outcome_unknown
COMMITTED as C
@0/2<0/0 b
@0/3 c
@0/2 b
@0/3 c

# A plain publish has no memory behind it: whoever sends it again may have it twice.
next-write lose-answer
publish orders plain
publish orders plain
poll orders after=@0/2
---
error: outcome_unknown
@0/5
@0/2<0/0 b
@0/3 c
@0/4 plain
@0/5 plain

# A write that was refused is not there, and the next one goes well.
next-write refuse
publish orders refused
publish orders taken
poll orders after=@0/4
---
error: store_unavailable
@0/7
@0/5 plain
@0/7 taken

# A request id is for one call.
begin D request=r4
commit D request=r4
one-shot E orders=e request=r1
---
error: request_reused
error: request_reused
