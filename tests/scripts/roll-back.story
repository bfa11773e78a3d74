# A roll back touches the rows of its own write pointer within its range, and nothing else.
create orders
begin A
begin B
publish orders a1 tx=A
publish orders b1 tx=B
publish orders plain
publish orders a2 tx=A
---
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0
@0/1
@0/2
@0/3

# Only what A published last: a2.
roll-back orders tx=A
peek orders
---
@0/0 a1: open, by A
@0/1 b1: open, by B
@0/2 plain: plain
@0/3 a2: rolled back, by A

# Once more changes nothing.
roll-back orders tx=A
peek orders
---
@0/0 a1: open, by A
@0/1 b1: open, by B
@0/2 plain: plain
@0/3 a2: rolled back, by A

# Readers without a snapshot still see it, at the same place; those of committed messages never will.
commit A
commit B
poll orders
poll orders as=committed
---
COMMITTED
COMMITTED
@0/0 a1
@0/1 b1
@0/2 plain
@0/3 a2
@0/0 a1
@0/1 b1
@0/2 plain

# After the end there is nothing to roll back.
roll-back orders tx=A
---
error: transaction_ended

# Clean-up takes the rolled-back row away.
rows
clean-up
rows
poll orders
---
4 message rows, 0 payload rows
3 message rows, 0 payload rows
@0/0 a1
@0/1 b1
@0/2 plain
