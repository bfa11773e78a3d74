"""Reading topics in Spark: at once (`spark.read`) and in micro-batches (`spark.readStream`). docs/spark/source.md."""
