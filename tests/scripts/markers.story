# Two tasks write a topic. It is as far as the slower one, and says nothing before both have spoken. Polls see no marker.
create orders
publish orders one
mark orders a/2 700
markers orders
mark orders b/2 500
markers orders
poll orders
poll orders as=committed
---
generation=1 onInvalid=drop spread=1 ttl=604800
@0/0
watermark unknown (a 700)
watermark 500 (a 700, b 500)
@0/0 one
@0/0 one

# A marker of a transaction comes with its commit, behind its messages; of one that is aborted never.
begin A
publish orders early tx=A
mark orders b/2 600
markers orders
abort A
markers orders
one-shot B orders=two mark=orders:b/2:900
markers orders
---
@0/3
watermark 500 (a 700, b 500)
ABORTED
watermark 600 (a 700, b 600)
COMMITTED as B
watermark 700 (a 700, b 900)

# What was saved and what came after it are the same after a restart.
save-markers
mark orders b/2 end
restart
markers orders
mark orders b/2 1000
mark orders c/2 1000
mark orders a/3 1000
---
watermark 700 (a 700, b ended)
error: marker_refused
error: marker_refused
error: marker_refused

# The end is the last task's, and stays when every marker has expired.
one-shot D mark=orders:a/2:end
markers orders
save-markers
advance 8d
clean-up
markers orders
restart
markers orders
mark orders a/2 end
---
COMMITTED as D
watermark 900, ended (a ended, b ended)
watermark 900, ended (a ended, b ended)
watermark 900, ended (a ended, b ended)

# A new generation knows of none.
delete orders
create orders
markers orders
---
generation=2 onInvalid=drop spread=1 ttl=604800
watermark unknown (no task has spoken)
