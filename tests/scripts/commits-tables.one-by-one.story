# Where intent, rows and outcome of a commit are written one after the other, a commit that stops in between did not happen:
# its messages are rolled back, and its cells are hidden for good.
create-table stock
create orders
begin seed
put stock tx=seed chair/count=9
commit seed
begin A
put stock tx=A chair/count=3
next-write lose-answer
commit A orders=a request=r1
commit A orders=a request=r1
outcome A
get stock chair
poll orders as=committed
---
conflict=row generation=1
generation=1 onInvalid=drop spread=1 ttl=604800
COMMITTED
error: outcome_unknown
error: transaction_ended
INVALID
chair/count 9
nothing

# The rows are there, the outcome is not.
begin B
put stock tx=B chair/count=2
next-write lose-answer after=1
commit B orders=b request=r2
commit B orders=b request=r2
outcome B
get stock chair
poll orders as=committed
---
error: transaction_ended
error: transaction_ended
INVALID
chair/count 9
nothing

# The outcome is there, and its answer was lost.
begin C
put stock tx=C chair/count=1
next-write lose-answer after=2
commit C orders=c request=r3
commit C orders=c request=r3
get stock chair
poll orders as=committed
---
error: outcome_unknown
COMMITTED
chair/count 1
@0/1 c

# The note of an aborted writer's cells is durable before its outcome: a process that dies in between leaves it open.
begin D timeout=1m
put stock tx=D chair/count=0
next-write die-after
abort D
restart
outcome D
advance 1m
expire
outcome D
get stock chair
---
the server died
OPEN
1 ended
INVALID
chair/count 1
