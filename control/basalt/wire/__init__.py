"""What travels in request and answer bodies: the values, their meaning, and their strict codecs (Avro and JSON).

Server and client share this package, so both sides agree by construction. Formats: docs/formats/avro-bodies.md,
docs/formats/json-bodies.md and docs/formats/records-api.md.
"""
