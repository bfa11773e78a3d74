"""The demo on Spark: an access log through a pipeline of four queries, every process killed once. Run by `make spark-demo`."""
