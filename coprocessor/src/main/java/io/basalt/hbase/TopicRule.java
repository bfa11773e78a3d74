package io.basalt.hbase;

/** What the metadata table says of a topic, as far as retention asks. */
final class TopicRule {
  /** Negative once the topic is deleted. */
  final int generation;
  final long ttlMs;
  final OnInvalid onInvalid;

  TopicRule(int generation, long ttlMs, OnInvalid onInvalid) {
    this.generation = generation;
    this.ttlMs = ttlMs;
    this.onInvalid = onInvalid;
  }

  boolean isAs(TopicRule other) {
    return other != null
        && generation == other.generation
        && ttlMs == other.ttlMs
        && onInvalid == other.onInvalid;
  }
}
