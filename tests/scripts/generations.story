# A topic that is deleted and created again is another one: nothing of the old is seen in it, by no kind of reader.
create orders ttl=3600 label.owner=billing
publish orders old
begin A
store orders stored tx=A
begin B
publish orders early tx=B
---
generation=1 label.owner=billing onInvalid=drop spread=1 ttl=3600
@0/0
@0/1

delete orders
poll orders
publish orders lost
list
---
error: topic_not_found
error: topic_not_found
no topics

# It takes the properties that it is given now.
create orders
poll orders
poll orders from=@0/0
poll orders from=0
poll orders as=A
---
generation=2 onInvalid=drop spread=1 ttl=604800
nothing
nothing
nothing
nothing

# The old transactions end without leaving a trace in it.
commit A
roll-back orders tx=B
commit B
poll orders
publish orders new
poll orders
poll orders as=committed
---
COMMITTED
COMMITTED
nothing
@0/0
@0/0 new
@0/0 new

# The same after a restart, and after clean-up, which removes the rows of the old generation.
restart
poll orders
rows
clean-up
rows
poll orders
---
@0/0 new
3 message rows, 1 payload rows
1 message rows, 0 payload rows
@0/0 new

# Once more.
delete orders
create orders
poll orders
---
generation=3 onInvalid=drop spread=1 ttl=604800
nothing
