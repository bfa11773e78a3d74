"""Publishing data frames to topics exactly once: `df.write`, `df.writeStream` and `batch_transaction`.

docs/spark/sink.md.
"""
