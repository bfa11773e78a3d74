# Messages are seen for as long as the topic's time to live, to the millisecond, and then by nobody.
create orders ttl=60
publish orders old
advance 30s
publish orders new
poll orders
---
generation=1 onInvalid=drop spread=1 ttl=60
@0/0
@30000/0
@0/0 old
@30000/0 new

advance 29999ms
poll orders
---
@0/0 old
@30000/0 new

advance 1ms
poll orders
rows
---
@30000/0 new
2 message rows, 0 payload rows

# A shorter one holds for old messages at once, and so does a longer one.
update orders ttl=10
poll orders
update orders ttl=120
poll orders
update orders ttl=60
---
generation=1 onInvalid=drop spread=1 ttl=10
nothing
generation=1 onInvalid=drop spread=1 ttl=120
@0/0 old
@30000/0 new
generation=1 onInvalid=drop spread=1 ttl=60

# Clean-up takes away what nobody can see, once it is an eighth of the time overdue.
clean-up
rows
advance 7500ms
clean-up
rows
---
2 message rows, 0 payload rows
1 message rows, 0 payload rows

# What was taken away does not come back.
update orders ttl=1
clean-up
rows
update orders ttl=120
poll orders
publish orders newest
poll orders
---
generation=1 onInvalid=drop spread=1 ttl=1
0 message rows, 0 payload rows
generation=1 onInvalid=drop spread=1 ttl=120
nothing
@67500/0
@67500/0 newest
