# An open transaction holds nobody up: what it stores has no place in the topic until it commits.
create orders
create invoices
begin A
store orders "a chair" tx=A
store invoices "40" tx=A
publish orders "a lamp"
poll orders as=committed
poll invoices as=committed
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0
@0/0 a lamp
nothing

# The commit shows all of it at once, in both topics.
advance 10ms
commit A
poll orders as=committed
poll invoices as=committed
---
COMMITTED
@0/0 a lamp
@10/0<0/0 a chair
@10/0<0/0 40

# An abort shows nothing of it, to anybody.
begin B
store orders "a mistake" tx=B
abort B
poll orders after=@10/0<0/0
rows
---
ABORTED
nothing
3 message rows, 2 payload rows

# Work travels with the commit. In each topic it comes after what was stored.
begin C
store orders "first" tx=C
commit C orders=second orders=third invoices=50
poll orders after=@10/0<0/0 as=committed
poll invoices after=@10/0<0/0 as=committed
---
COMMITTED
@10/1<10/0 first
@10/2 second
@10/3 third
@10/1 50

# A one-shot transaction: begun, written and committed in one call, and the same once more when its answer was lost.
one-shot D orders=both invoices=both request=r1
one-shot D2 orders=both invoices=both request=r1
poll orders after=@10/3 as=committed
poll invoices after=@10/1 as=committed
---
COMMITTED as D
COMMITTED as D
@10/4 both
@10/2 both

# All of it or nothing: one of the topics is not there.
one-shot E orders=half nothing=half
poll orders after=@10/4
---
error: topic_not_found
nothing

# Ending twice is no error, ending otherwise is.
commit A
abort A
abort B
commit B
outcome A
outcome B
---
COMMITTED
error: transaction_ended
ABORTED
error: transaction_ended
COMMITTED
ABORTED
