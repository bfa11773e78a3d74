# A commit whose answer is lost is repeated: its markers are there once.
create orders
begin A
next-write lose-answer
commit A orders=one mark=orders:a:700 mark=orders:a:end request=r1
commit A orders=one mark=orders:a:700 mark=orders:a:end request=r1
markers orders
peek orders
---
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
COMMITTED
watermark 700, ended (a ended)
@0/0 one: committed, by A
@0/1 {"v":1,"task":"a","taskCount":1,"eventTimeMs":700}: committed, by A
@0/2 {"v":1,"task":"a","taskCount":1}: committed, by A

# The same, but it was not written: what is repeated is emitted then, and nothing was known of it before.
create other
begin B
next-write lose-write
commit B other=two mark=other:a:700 mark=other:a:end request=r2
markers other
commit B other=two mark=other:a:700 mark=other:a:end request=r2
markers other
peek other
---
generation=1 onInvalid=drop spread=1 ttl=604800
error: outcome_unknown
watermark unknown (no task has spoken)
COMMITTED
watermark 700, ended (a ended)
@0/3 two: committed, by B
@0/4 {"v":1,"task":"a","taskCount":1,"eventTimeMs":700}: committed, by B
@0/5 {"v":1,"task":"a","taskCount":1}: committed, by B

# A marker that was not written may be emitted again, and one that was may too.
create third
next-write refuse
mark third a 5
markers third
next-write lose-answer
mark third a 6
markers third
next-write lose-write
mark third a 7
markers third
mark third a 7
restart
markers third
---
generation=1 onInvalid=drop spread=1 ttl=604800
error: store_unavailable
watermark unknown (no task has spoken)
error: outcome_unknown
watermark 6 (a 6)
error: outcome_unknown
watermark 6 (a 6)
watermark 7 (a 7)
