# A table: cells are seen once their transaction has committed, and deleted ones are gone.
create-table stock
create-table stock
create-table prices conflict=cell
list-tables
list
begin A
put stock tx=A chair/count=5 chair/colour=red desk/count=2
get stock chair
get stock chair as=A
commit A
get stock chair
scan stock
---
conflict=row generation=1
error: table_exists
conflict=cell generation=1
prices stock
no topics
nothing
chair/colour red
chair/count 5
COMMITTED
chair/colour red
chair/count 5
chair/colour red
chair/count 5
desk/count 2

# The last of two writes under one pointer counts, and what is deleted is gone.
begin B
put stock tx=B chair/count=4
put stock tx=B chair/count=3
delete-cells stock tx=B chair/colour
delete-rows stock tx=B desk
get stock chair desk as=B
get stock chair desk
commit B
scan stock
begin C
put stock tx=C desk/count=9 desk/colour=
delete-cells stock tx=C desk/count
get stock desk as=C
put stock tx=C desk/count=1
commit C
get stock desk
---
chair/count 3
chair/colour red
chair/count 5
desk/count 2
COMMITTED
chair/count 3
desk/colour 
COMMITTED
desk/colour 
desk/count 1

# A checkpoint: a transaction tells its later writes from its earlier ones.
begin D
put stock tx=D lamp/count=1
checkpoint D
put stock tx=D lamp/count=2
get stock lamp as=D
get stock lamp as=D level=exclude-current
get stock lamp as=D level=all
delete-cells stock tx=D lamp/count
get stock lamp as=D
get stock lamp as=D level=exclude-current
get stock lamp as=D level=all
commit D
get stock lamp
---
lamp/count 2
lamp/count 1
lamp/count 2
lamp/count 1
nothing
lamp/count 1
lamp/count deleted
lamp/count 1
COMMITTED
nothing

# Abort, time-out and invalidation: nothing of it shows, and nobody undoes it.
begin E
put stock tx=E lamp/count=7
abort E
abort E
get stock lamp
begin F timeout=1s
put stock tx=F lamp/count=8
advance 1s
expire
get stock lamp
put stock tx=F lamp/count=9
outcome F
begin G
abort G
---
INVALID
INVALID
nothing
1 ended
nothing
error: transaction_ended
INVALID
ABORTED

# Pages: whole rows, in order.
begin H
put prices tx=H a/1=x a/2=x b/1=x c/1=x c/2=x c/3=x d/1=x
commit H
scan prices limit=1
scan prices from=b to=c
scan prices from=c limit=2
---
COMMITTED
a/1 x
a/2 x
b/1 x
c/1 x
c/2 x
c/3 x
d/1 x
b/1 x
c/1 x
c/2 x
c/3 x
d/1 x

# A deleted table is out of reach, and empty when it is created again.
begin I
delete-table prices
put prices tx=I a/1=y
get prices a
create-table prices conflict=none
scan prices
put prices tx=I a/1=y
commit I
scan prices
delete-table stock
list-tables
---
error: table_not_found
error: table_not_found
conflict=none generation=2
nothing
COMMITTED
a/1 y
prices

# All that lasts over a restart.
restart
scan prices
get prices a
create-table stock
scan stock
---
a/1 y
a/1 y
conflict=row generation=2
nothing

# Clean-up removes versions that nobody can see any more, and everybody sees the same before and after.
begin reader
begin J
put stock tx=J chair/count=1
commit J
begin K
put stock tx=K chair/count=2 desk/count=2
commit K
begin L
put stock tx=L chair/count=3
abort L
begin M
delete-rows stock tx=M desk
commit M
versions
clean-up
scan stock
scan stock as=reader
commit reader
clean-up
scan stock
versions
---
COMMITTED
COMMITTED
INVALID
COMMITTED
25 versions
chair/count 2
nothing
COMMITTED
chair/count 2
2 versions
