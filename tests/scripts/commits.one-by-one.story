# A store that cannot write to several topics at once: a commit is three writes (what is meant, the rows, the outcome). It
# happened when the third one is there, and else it did not, wherever the process died.
create orders
create invoices
---
generation=1 onInvalid=drop spread=1 ttl=604800
generation=1 onInvalid=drop spread=1 ttl=604800

# Before the first write: nothing has happened.
begin A
store orders a tx=A
next-write die-before
commit A invoices=a
restart
outcome A
poll orders as=committed
commit A invoices=a
poll orders as=committed
poll invoices as=committed
---
the server died
OPEN
nothing
COMMITTED
@0/0<0/0 a
@0/0 a

# After it: the next process knows what was meant, and not how much of it there is. So it rolls all of it back.
begin B
store orders b tx=B
next-write die-after
commit B invoices=b
restart
outcome B
poll orders as=committed
poll invoices as=committed
commit B invoices=b
---
the server died
ABORTED
@0/0<0/0 a
@0/0 a
error: transaction_ended

# After the rows: the same. They are there, and hidden.
begin C
store orders c tx=C
next-write die-after after=1
commit C invoices=c
restart
outcome C
poll orders as=committed
poll invoices as=committed
peek invoices
---
the server died
ABORTED
@0/0<0/0 a
@0/0 a
@0/0 a: committed, by A
@0/1 c: rolled back, by C

# After the outcome: it happened.
begin D
store orders d tx=D
next-write die-after after=2
commit D invoices=d
restart
outcome D
poll orders as=committed
poll invoices as=committed
---
the server died
COMMITTED
@0/0<0/0 a
@0/2<0/0 d
@0/0 a
@0/2 d

# The same without a crash, when the answer about the rows is lost. Nobody knows whether they are there, so the commit is given
# up, and rolled back at once; where that does not succeed, the job that ends transactions sees to it within a second.
begin E
store orders e tx=E
next-write lose-answer after=1
commit E invoices=e
outcome E
expire
outcome E
poll orders as=committed
poll invoices as=committed
---
error: transaction_ended
ABORTING
0 ended
ABORTED
@0/0<0/0 a
@0/2<0/0 d
@0/0 a
@0/2 d

# A one-shot transaction whose outcome was not written did not happen; the repeated call does it.
next-write lose-write after=2
one-shot F orders=f invoices=f request=r1
one-shot F orders=f invoices=f request=r1
poll orders as=committed
expire
poll orders as=committed
poll invoices as=committed
---
error: outcome_unknown
COMMITTED as F
@0/0<0/0 a
@0/2<0/0 d
@0/5 f
0 ended
@0/0<0/0 a
@0/2<0/0 d
@0/5 f
@0/0 a
@0/2 d
@0/5 f

# In topics to which one wrote in the last seconds it is two writes: the rows, and the outcome. So of this one the log has
# nothing when the process dies after the rows. The next one looks for them at the ends of these topics, and rolls them back.
next-write die-after
one-shot G orders=g invoices=g request=r2
restart
peek invoices
poll orders as=committed
one-shot G orders=g invoices=g request=r2
poll orders as=committed
poll invoices as=committed
---
the server died
@0/0 a: committed, by A
@0/1 c: rolled back, by C
@0/2 d: committed, by D
@0/3 e: rolled back, by E
@0/4 f: invalid, by one of which no client knows
@0/5 f: committed, by F
@0/6 g: invalid, by one of which no client knows
@0/0<0/0 a
@0/2<0/0 d
@0/5 f
COMMITTED as G
@0/0<0/0 a
@0/2<0/0 d
@0/5 f
@0/7 g
@0/0 a
@0/2 d
@0/5 f
@0/7 g

# After the second write it happened.
next-write die-after after=1
one-shot H orders=h invoices=h request=r3
restart
one-shot H orders=h invoices=h request=r3
poll orders as=committed
poll invoices as=committed
---
the server died
COMMITTED as H
@0/0<0/0 a
@0/2<0/0 d
@0/5 f
@0/7 g
@0/8 h
@0/0 a
@0/2 d
@0/5 f
@0/7 g
@0/8 h
