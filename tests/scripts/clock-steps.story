# A clock that is set back changes no order: places and write pointers go on from the newest one.
create orders
advance 1h
publish orders noon
begin A
set-clock -1h
publish orders later
begin B
publish orders b tx=B
commit B
poll orders
---
generation=1 onInvalid=drop spread=1 ttl=604800
@3600000/0
@3600000/1
@3600000/2
COMMITTED
@3600000/0 noon
@3600000/1 later
@3600000/2 b

# The same in the next process.
restart
publish orders still-later
poll orders after=@3600000/2
---
@3600000/3
@3600000/3 still-later

# A clock that jumps ahead, as at a wrong start: order holds, and time to live ends no message early for good.
set-clock +40d
poll orders
set-clock -40d
poll orders
---
nothing
@3600000/0 noon
@3600000/1 later
@3600000/2 b
@3600000/3 still-later

# What is published while it is ahead comes first in what follows, whatever the clock says then.
set-clock +2h
publish orders ahead
set-clock -2h
publish orders behind
poll orders after=@3600000/3
poll orders as=committed after=@3600000/3
commit A
---
@7200000/0
@7200000/1
@7200000/0 ahead
@7200000/1 behind
@7200000/0 ahead
@7200000/1 behind
COMMITTED
