package io.basalt.hbase.format;

/**
 * The epochs in the map of owners, which the leader writes before the owners send their fences. Format:
 * docs/formats/system-table.md, "owners".
 */
public final class OwnersMap {
  public static final String KIND = "owners";
  public static final String NAME = "map";
  private static final int FORMAT = 1;
  private static final int VERSION = 1;
  private static final int LEADER = VERSION + BigEndian.LONG_BYTES;
  private static final int COUNT = LEADER + BigEndian.LONG_BYTES;
  private static final int HEAD_BYTES = COUNT + 2;

  private OwnersMap() {}

  /** The floors that the body says, with this leader's epoch beside them. */
  public static Floors floors(byte[] body, long leader) throws CorruptionException {
    check(body.length >= HEAD_BYTES && body[0] == FORMAT);
    check(BigEndian.readLong(body, VERSION) > 0 && BigEndian.readLong(body, LEADER) > 0);
    int members = BigEndian.readUnsignedShort(body, COUNT);
    int offset = HEAD_BYTES;
    for (int member = 0; member < members; member++) {
      check(offset + 2 <= body.length);
      int length = BigEndian.readUnsignedShort(body, offset);
      check(length > 0);
      offset += 2 + length;
    }
    check(body.length == offset + Floors.SHARDS * BigEndian.LONG_BYTES);
    long[] epochs = new long[Floors.SHARDS];
    for (int shard = 0; shard < Floors.SHARDS; shard++, offset += BigEndian.LONG_BYTES) {
      // The owner's place and the epoch stand as the shard and the epoch of a claim do.
      long owned = BigEndian.readLong(body, offset);
      epochs[shard] = Floors.epochOf(owned);
      check(Floors.shardOf(owned) < members && epochs[shard] > 0 && epochs[shard] <= Floors.EPOCH_MAX);
    }
    return new Floors(leader, epochs);
  }

  /** The floors where no shard was ever dealt. */
  public static Floors floors(long leader) {
    return new Floors(leader, new long[Floors.SHARDS]);
  }

  private static void check(boolean holds) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("the map of owners is not as its format says");
    }
  }
}
