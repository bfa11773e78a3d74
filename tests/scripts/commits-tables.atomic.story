# A commit whose answer was lost: whoever asks again gets the outcome, and cells and messages are there together.
create-table stock
create orders
begin A
put stock tx=A chair/count=3
next-write lose-answer
commit A orders=a request=r1
get stock chair
commit A orders=a request=r1
get stock chair
poll orders as=committed
---
conflict=row generation=1
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
chair/count 3
COMMITTED
chair/count 3
@0/0 a

# One that did not happen happens then.
begin B
put stock tx=B chair/count=2
next-write lose-write
commit B orders=b request=r2
commit B orders=b request=r2
get stock chair
poll orders as=committed after=@0/0
---
error: outcome_unknown
COMMITTED
chair/count 2
@0/2 b

# The process dies over it: before, or after. There is no third.
begin C timeout=1m
put stock tx=C chair/count=1
next-write die-before
commit C orders=c
restart
outcome C
get stock chair
commit C orders=c
begin D
put stock tx=D chair/count=0
next-write die-after
commit D orders=d
restart
outcome D
get stock chair
begin E
put stock tx=E chair/count=9
next-write die-after
abort E
restart
outcome E
get stock chair
poll orders as=committed after=@0/0
---
the server died
OPEN
chair/count 2
COMMITTED
the server died
COMMITTED
chair/count 0
the server died
INVALID
chair/count 0
@0/2 b
@0/3 c
@0/4 d
