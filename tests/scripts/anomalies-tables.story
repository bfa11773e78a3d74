# Anomalies on tables and topics together. Each reader below would see one, if it could happen.
create-table stock
create-table ledger
create orders
create invoices
create parcels
begin seed
put stock tx=seed chair/count=10 desk/count=10
put ledger tx=seed cash/amount=0
commit seed
---
conflict=row generation=1
conflict=row generation=1
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800
COMMITTED

# Dirty read: cells that are not committed, and those that never will be.
begin A
put stock tx=A chair/count=9
get stock chair
begin beside-A
get stock chair as=beside-A
abort A
get stock chair
get stock chair as=beside-A
scan stock as=beside-A
---
chair/count 10
chair/count 10
INVALID
chair/count 10
chair/count 10
chair/count 10
desk/count 10

# Non-repeatable read: a snapshot reads the same for ever.
begin reader
begin B
put stock tx=B chair/count=8
get stock chair as=reader
commit B orders=chair
get stock chair as=reader
poll orders as=reader
get stock chair
poll orders as=committed
---
chair/count 10
COMMITTED
chair/count 10
waits for B
chair/count 8
@0/0 chair

# Phantom: a scan finds neither what came later nor misses what was deleted later.
begin C
put stock tx=C bench/count=1 table/count=1
delete-rows stock tx=C desk
commit C
scan stock as=reader
scan stock as=reader limit=1
scan stock
---
COMMITTED
chair/count 10
desk/count 10
chair/count 10
desk/count 10
bench/count 1
chair/count 8
table/count 1

# Torn commit: three topics and two tables, and each snapshot has all of it or nothing.
begin before
begin D
store orders d tx=D
put stock tx=D chair/count=7
put ledger tx=D cash/amount=50
store invoices d tx=D
commit D parcels=d
begin after
poll orders as=before
poll invoices as=before
poll parcels as=before
get stock chair as=before
get ledger cash as=before
poll orders as=after
poll invoices as=after
poll parcels as=after
get stock chair as=after
get ledger cash as=after
---
COMMITTED
@0/0 chair
waits for D
waits for D
waits for D
chair/count 8
cash/amount 0
@0/0 chair
@0/1<0/0 d
@0/0<0/0 d
@0/0 d
chair/count 7
cash/amount 50

# The same where it fails: an abort takes back the messages, and hides the cells.
begin E
store orders e tx=E
put stock tx=E chair/count=0
put ledger tx=E cash/amount=-1
store invoices e tx=E
abort E
poll orders as=committed
poll invoices as=committed
get stock chair
get ledger cash
---
INVALID
@0/0 chair
@0/1<0/0 d
@0/0<0/0 d
chair/count 7
cash/amount 50

# Lost update: of two that change the same row, the second to commit loses, and its cells stay hidden.
begin F
begin G
get stock chair as=F
get stock chair as=G
change-rows stock tx=F chair
change-rows stock tx=G chair
put stock tx=F chair/count=6
commit F orders=f
put stock tx=G chair/count=5
commit G orders=g
abort G
get stock chair
poll orders as=committed
---
chair/count 7
chair/count 7
COMMITTED
error: transaction_conflict
INVALID
chair/count 6
@0/0 chair
@0/1<0/0 d
@0/2 f

# The check comes with the changes, too: who tells them after another's commit learns it before a cell is written.
begin H
begin I
change-rows stock tx=H chair
put stock tx=H chair/count=5
commit H
change-rows stock tx=I chair
put stock tx=I chair/count=4
abort I
get stock chair
---
COMMITTED
error: transaction_conflict
error: transaction_conflict
ABORTED
chair/count 5

# Different rows are no conflict.
begin J
begin K
change-rows stock tx=J chair
change-rows stock tx=K desk
put stock tx=J chair/count=4
put stock tx=K desk/count=4
commit J
commit K
get stock chair desk
---
COMMITTED
COMMITTED
chair/count 4
desk/count 4

# Write skew is allowed: each reads what the other writes, and both commit. Who must not have it writes a row that both change.
begin L
begin M
get stock chair desk as=L
get stock chair desk as=M
change-rows stock tx=L chair
change-rows stock tx=M desk
put stock tx=L chair/count=0
put stock tx=M desk/count=0
commit L
commit M
get stock chair desk
---
chair/count 4
desk/count 4
chair/count 4
desk/count 4
COMMITTED
COMMITTED
chair/count 0
desk/count 0

# A commit that was delayed until its transaction had timed out does not happen after all, nor do its late cells.
begin N timeout=1s
put stock tx=N chair/count=1
advance 1s
put stock tx=N chair/count=2
commit N orders=n
expire
commit N orders=n
put stock tx=N chair/count=3
outcome N
get stock chair
poll orders as=committed
---
error: transaction_ended
error: transaction_ended
0 ended
error: transaction_ended
error: transaction_ended
INVALID
chair/count 0
@0/0 chair
@0/1<0/0 d
@0/2 f

# A server that stops in between: what was not committed is hidden after its time-out, what was committed is there.
begin O timeout=1m
put stock tx=O lamp/count=1
begin P
put stock tx=P lamp/count=2
commit P orders=p
restart
get stock lamp
put stock tx=O lamp/count=3
get stock lamp as=O
advance 1m
expire
outcome O
get stock lamp
---
COMMITTED
lamp/count 2
lamp/count 3
5 ended
INVALID
lamp/count 2
