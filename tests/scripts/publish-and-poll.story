# What is published is there for everybody at once, in the order in which it came. A place is a time and a number in it.
create orders
publish orders one two
publish orders three
advance 5ms
publish orders four
---
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0 to @0/1
@0/2
@5/0

# The whole topic.
poll orders
---
@0/0 one
@0/1 two
@0/2 three
@5/0 four

# In pages: each goes on behind the last message of the one before.
poll orders limit=2
poll orders after=@0/1 limit=2
poll orders after=@5/0
---
@0/0 one
@0/1 two
@0/2 three
@5/0 four
nothing

# A start includes its message unless it is told otherwise; so do times.
poll orders from=@0/2
poll orders from=0 limit=1
poll orders after=0
poll orders from=3
poll orders from=6
---
@0/2 three
@5/0 four
@0/0 one
@5/0 four
@5/0 four
nothing

# Any place is a start, also one where there is no message.
poll orders from=@0/7
poll orders after=@3/0
---
@5/0 four
@5/0 four

# What cannot be.
poll invoices
publish invoices lost
create orders
---
error: topic_not_found
error: topic_not_found
error: topic_exists
