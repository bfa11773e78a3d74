# A transaction whose client went away is ended when its time is up; its messages never show.
create orders
begin A timeout=1s
publish orders early tx=A
publish orders behind
poll orders as=committed
---
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0
@0/1
waits for A

advance 999ms
expire
poll orders as=committed
---
0 ended
waits for A

advance 1ms
expire
poll orders as=committed
outcome A
---
1 ended
@0/1 behind
ABORTED

# Too late for everything but being told so.
commit A
publish orders more tx=A
store orders more tx=A
poll orders as=committed
---
error: transaction_ended
error: transaction_ended
error: transaction_ended
@0/1 behind

# One that wrote elsewhere too cannot be undone here: its pointer goes to the invalid list, and hides what it wrote.
begin B outside timeout=1s
publish orders hidden tx=B
advance 1s
expire
outcome B
poll orders as=committed
peek orders
---
@1000/0
1 ended
INVALID
@0/1 behind
@0/0 early: rolled back, by A
@0/1 behind: plain
@1000/0 hidden: invalid, by B

# Its client comes back and has undone its writes: the abort is late, and still takes.
abort B
outcome B
---
ABORTED
ABORTED

# The deadline counts even before anybody has looked.
begin C timeout=1s
store orders late tx=C
advance 1s
commit C
outcome C
poll orders as=committed
---
error: transaction_ended
ABORTING
@0/1 behind
