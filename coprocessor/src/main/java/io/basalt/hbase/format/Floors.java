package io.basalt.hbase.format;

import java.util.Arrays;

/**
 * The lowest epochs that may still write: of the leader, for rows of no shard, and of each shard's owner. Immutable. 0: any may.
 *
 * <p>It is what a region holds, what a region that opens reads, and what a fence asks for. Formats:
 * docs/formats/hbase-store.md, "Attributes".
 */
public final class Floors {
  public static final int SHARDS = 1024;
  /** The highest that a timestamp has room for. */
  static final long EPOCH_MAX = (1 << 21) - 2;

  public static final Floors NONE = new Floors(0, new long[SHARDS]);

  /** A shard and its epoch in one number, as a mutation carries them: the upper 2 bytes and the lower 6. */
  private static final int EPOCH_BITS = 48;
  private static final long EPOCH_MASK = (1L << EPOCH_BITS) - 1;

  private static final int FENCE_VERSION = 2;
  private static final int FENCE_LEADER = 1;
  private static final int FENCE_COUNT = FENCE_LEADER + BigEndian.LONG_BYTES;
  private static final int FENCE_HEAD_BYTES = FENCE_COUNT + 2;
  private static final int RANGE_BYTES = 10;

  public final long leader;
  private final long[] shards;

  Floors(long leader, long[] shards) {
    this.leader = leader;
    this.shards = shards;
  }

  /** The shard of a mutation's claim. */
  public static int shardOf(long claim) {
    return (int) (claim >>> EPOCH_BITS);
  }

  /** The epoch of a mutation's claim. */
  public static long epochOf(long claim) {
    return claim & EPOCH_MASK;
  }

  /** The lowest epoch of a shard. */
  public long shard(int shard) {
    return shards[shard];
  }

  /** Whether these say so of a mutation with this claim: its epoch is over. */
  public boolean refuses(long claim) {
    return epochOf(claim) < shards[shardOf(claim)];
  }

  /** The higher of both in each place; one of the two themselves where that is it. */
  public Floors raisedTo(Floors other) {
    boolean same = other.leader <= leader;
    boolean others = other.leader >= leader;
    long[] highest = new long[SHARDS];
    for (int shard = 0; shard < SHARDS; shard++) {
      highest[shard] = Math.max(shards[shard], other.shards[shard]);
      same &= highest[shard] == shards[shard];
      others &= highest[shard] == other.shards[shard];
    }
    return same ? this : others ? other : new Floors(Math.max(leader, other.leader), highest);
  }

  /** The reason why a fence of these epochs comes too late for a region with these floors, or null: it names a lower one. */
  public String whyTooLow(Floors fence) {
    if (fence.leader != 0 && fence.leader < leader) {
      return "a fence of epoch " + fence.leader + ", but epoch " + leader + " leads here";
    }
    for (int shard = 0; shard < SHARDS; shard++) {
      if (fence.shards[shard] != 0 && fence.shards[shard] < shards[shard]) {
        return "a fence of epoch " + fence.shards[shard] + " of shard " + shard + ", but it has epoch " + shards[shard]
            + " here";
      }
    }
    return null;
  }

  /** The epochs that a fence asks for. */
  public static Floors ofFence(byte[] value) throws CorruptionException {
    check(value.length >= FENCE_HEAD_BYTES && value[0] == FENCE_VERSION);
    long leader = BigEndian.readLong(value, FENCE_LEADER);
    int count = BigEndian.readUnsignedShort(value, FENCE_COUNT);
    check(leader >= 0 && value.length == FENCE_HEAD_BYTES + count * RANGE_BYTES);
    long[] shards = new long[SHARDS];
    int next = 0;
    for (int offset = FENCE_HEAD_BYTES; offset < value.length; offset += RANGE_BYTES) {
      int first = BigEndian.readUnsignedShort(value, offset);
      // The last shard and the epoch stand as a claim does.
      long claim = BigEndian.readLong(value, offset + 2);
      check(first >= next && shardOf(claim) >= first && shardOf(claim) < SHARDS && epochOf(claim) > 0);
      next = shardOf(claim) + 1;
      Arrays.fill(shards, first, next, epochOf(claim));
    }
    return new Floors(leader, shards);
  }

  private static void check(boolean holds) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("a fence is not as its format says");
    }
  }
}
