"""Strict codecs of the bodies: JSON, Avro, Arrow and message batches."""
