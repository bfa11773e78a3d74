package io.basalt.hbase.fence;

import io.basalt.hbase.format.Floors;
import java.util.Arrays;

/** Under which epochs the mutations of one mini-batch are written: of the leader, and of which shards. */
final class Claims {
  /** The leader's epoch where no mutation carries one. */
  private static final long NO_LEADER = Long.MAX_VALUE;

  /** Most batches are of one shard, or of a few. */
  private static final int ROOM = 4;

  private long lowestLeader = NO_LEADER;
  private long[] shards = new long[ROOM];
  private int count;

  void addLeader(long epoch) {
    lowestLeader = Math.min(lowestLeader, epoch);
  }

  /** A shard and an epoch as {@link Floors} reads them. Neighbours are mostly of one shard, and kept once. */
  void addShard(long claim) {
    if (count > 0 && shards[count - 1] == claim) {
      return;
    }
    if (count == shards.length) {
      shards = Arrays.copyOf(shards, 2 * count);
    }
    shards[count++] = claim;
  }

  /** True unless no mutation says who writes it. */
  boolean any() {
    return count > 0 || lowestLeader != NO_LEADER;
  }

  /** True when a mutation has a lower epoch than these. */
  boolean isBelow(Floors floors) {
    return lowestLeader < floors.leader || firstBelow(floors) >= 0;
  }

  /** The reason why a region with these floors refuses the batch, or null. */
  String whyOver(Floors floors) {
    if (lowestLeader < floors.leader) {
      return "epoch " + lowestLeader + " is over here since epoch " + floors.leader;
    }
    int below = firstBelow(floors);
    if (below < 0) {
      return null;
    }
    int shard = Floors.shardOf(shards[below]);
    return "epoch " + Floors.epochOf(shards[below]) + " of shard " + shard + " is over here since epoch "
        + floors.shard(shard);
  }

  private int firstBelow(Floors floors) {
    for (int index = 0; index < count; index++) {
      if (floors.refuses(shards[index])) {
        return index;
      }
    }
    return -1;
  }
}
