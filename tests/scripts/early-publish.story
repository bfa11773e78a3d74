# The messaging API's older way: a client publishes with its write pointer before it commits. Readers of committed messages
# wait there, those without a snapshot do not.
create orders
publish orders before
begin A
advance 1ms
publish orders early tx=A
publish orders behind
poll orders as=committed
poll orders
poll orders as=A
---
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0
@1/0
@1/1
@0/0 before
waits for A
@0/0 before
@1/0 early
@1/1 behind
@0/0 before
@1/0 early
@1/1 behind

# A snapshot keeps saying the same, whatever happens since.
begin B
commit A
poll orders as=committed
poll orders as=B
begin C
poll orders as=C
---
COMMITTED
@0/0 before
@1/0 early
@1/1 behind
@0/0 before
waits for A
@0/0 before
@1/0 early
@1/1 behind

# Stored payloads, published by hand: the reference shows what was stored up to it, once.
begin D
advance 1ms
store orders d1 d2 tx=D
publish orders tx=D
store orders d3 tx=D
poll orders after=@1/1
publish orders tx=D
publish orders tx=D
poll orders after=@1/1
commit D
poll orders after=@1/1 as=committed
---
@2/0
@2/0<2/0 d1
@2/0<2/1 d2
@2/1
@2/2
@2/0<2/0 d1
@2/0<2/1 d2
@2/1<2/2 d3
COMMITTED
@2/0<2/0 d1
@2/0<2/1 d2
@2/1<2/2 d3
