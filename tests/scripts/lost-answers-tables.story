# A write of cells whose answer was lost is sent again, and changes nothing the second time.
create-table stock
create orders
begin A
next-write lose-answer
put stock tx=A chair/count=5
get stock chair
put stock tx=A chair/count=5
get stock chair as=A
versions
commit A
get stock chair
---
conflict=row generation=1
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
nothing
chair/count 5
1 versions
COMMITTED
chair/count 5

# One that did not happen happens then.
begin B
next-write lose-write
put stock tx=B chair/count=4
get stock chair as=B
put stock tx=B chair/count=4
commit B
get stock chair
---
error: outcome_unknown
chair/count 5
COMMITTED
chair/count 4

# A refused write leaves the transaction as it was.
begin C
next-write refuse
put stock tx=C chair/count=3
put stock tx=C chair/count=3
commit C
get stock chair
---
error: store_unavailable
COMMITTED
chair/count 3

# The process dies before the write of cells, or after it: their transaction is still open, and nobody else sees them.
begin D
next-write die-before
put stock tx=D lamp/count=1
restart
put stock tx=D lamp/count=2
next-write die-after
put stock tx=D lamp/count=3
restart
get stock lamp
get stock lamp as=D
commit D
get stock lamp
---
the server died
the server died
nothing
lamp/count 3
COMMITTED
lamp/count 3
