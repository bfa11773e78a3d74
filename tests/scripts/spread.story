# The rows of a topic can be spread over salt buckets. Its order is one all the same, and changing the spread changes nothing.
create orders spread=4
publish orders one
advance 1ms
publish orders two
advance 1ms
publish orders three
update orders spread=16
advance 1ms
publish orders four
update orders spread=1
advance 1ms
publish orders five
poll orders
poll orders after=@1/0 limit=2
---
generation=1 onInvalid=drop spread=4 ttl=604800
@0/0
@1/0
@2/0
generation=1 onInvalid=drop spread=16 ttl=604800
@3/0
generation=1 onInvalid=drop spread=1 ttl=604800
@4/0
@0/0 one
@1/0 two
@2/0 three
@3/0 four
@4/0 five
@2/0 three
@3/0 four

# And so does a restart.
restart
poll orders
publish orders six
poll orders from=@4/0
create invoices spread=17
---
@0/0 one
@1/0 two
@2/0 three
@3/0 four
@4/0 five
@4/1
@4/0 five
@4/1 six
error: invalid_property
