"""Publishing data frames to topics exactly once: `df.write`, `df.writeStream`, `batch_transaction`. docs/spark/sink.md."""
