# When the store failed while the transaction manager wrote its log, it cannot know what the log holds, and reads it
# again before it answers anything. Whoever needs no transaction notices nothing.
create orders
begin A
store orders a tx=A
next-write lose-answer
commit A
outcome A
publish orders plain
poll orders
---
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
COMMITTED
@0/1
@0/0<0/0 a
@0/1 plain

# The job that ends transactions reads the log, if nobody else has done so before. Nobody has to lend a hand.
expire
outcome A
commit A
poll orders as=committed
---
0 ended
COMMITTED
COMMITTED
@0/0<0/0 a
@0/1 plain
