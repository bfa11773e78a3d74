package io.basalt.hbase.fence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Floors;
import io.basalt.hbase.knowledge.InstallationTables;
import io.basalt.hbase.knowledge.Refresher;
import io.basalt.hbase.rule.Counters;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.junit.jupiter.api.Test;

class FenceTest {
  private static final long FENCE_WAIT_MS = 200;

  private final AtomicLong clock = new AtomicLong(1_700_000_000_000L);

  /** What reads the leader's lease and the map of owners finds: this epoch, and this one of each shard. */
  private static class Leases extends Refresher {
    final Floors floors;

    Leases(long leader) {
      this(leader, 0);
    }

    Leases(long leader, long shards) {
      super("basalt", new InstallationTables(null, "basalt"), 60_000, new Counters());
      try {
        Floors ofAll = Floors.ofFence(Batches.fenceOf(0, Floors.SHARDS - 1, Math.max(1, shards)).getAttribute(Fence.FENCE));
        floors = (shards == 0 ? Floors.NONE : ofAll).raisedTo(
            Floors.ofFence(Batches.fenceOf(leader).getAttribute(Fence.FENCE)));
      } catch (CorruptionException error) {
        throw new AssertionError(error);
      }
    }

    @Override
    public synchronized Floors readAfter(long openedNanos, long timeoutMs) throws IOException {
      return floors;
    }
  }

  /** A fence and where it learns the leader's epoch, as a region has both. */
  private static final class Fenced {
    final Fence fence;
    final Refresher leases;

    Fenced(Fence fence, Refresher leases) {
      this.fence = fence;
      this.leases = leases;
    }

    void before(Mutation mutation) throws IOException {
      fence.before(mutation, leases);
    }

    void enter(MiniBatchOperationInProgress<Mutation> batch) throws IOException {
      fence.enter(batch);
    }

    void leave(MiniBatchOperationInProgress<Mutation> batch) {
      fence.leave(batch);
    }
  }

  private Fenced fenceWithLease(long epoch) {
    return new Fenced(new Fence(clock::get, FENCE_WAIT_MS), new Leases(epoch));
  }

  /** A mutation as HBase passes it through the hooks, up to where it would be applied. */
  private static MiniBatchOperationInProgress<Mutation> letIn(Fenced fence, Mutation... mutations) throws IOException {
    for (Mutation mutation : mutations) {
      fence.before(mutation);
    }
    MiniBatchOperationInProgress<Mutation> batch = Batches.of(mutations);
    fence.enter(batch);
    return batch;
  }

  @Test
  void aWriteOfALowerEpochIsRefused() throws IOException {
    Fenced fence = fenceWithLease(4);
    fence.before(Batches.fenceOf(5));
    DoNotRetryIOException refused =
        assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(4)));
    assertTrue(refused.getMessage().contains("basalt fenced"), refused.getMessage());
  }

  @Test
  void aWriteOfThisOrAHigherEpochOrOfNoneIsLetIn() throws IOException {
    Fenced fence = fenceWithLease(5);
    fence.before(Batches.fenceOf(5));
    fence.leave(letIn(fence, Batches.putOf(5)));
    fence.leave(letIn(fence, Batches.putOf(6)));
    fence.leave(letIn(fence, Batches.put("row")));
  }

  @Test
  void oneMutationOfALowerEpochRefusesItsMiniBatch() throws IOException {
    Fenced fence = fenceWithLease(5);
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(5), Batches.putOf(4)));
  }

  @Test
  void aMiniBatchIsJudgedByItsOwnPartOfALargeBatch() throws IOException {
    Fenced fence = fenceWithLease(5);
    Mutation[] mutations = {Batches.putOf(5), Batches.putOf(4)};
    for (Mutation mutation : mutations) {
      fence.before(mutation);
    }
    fence.enter(Batches.part(0, 1, mutations));
    assertThrows(DoNotRetryIOException.class, () -> fence.enter(Batches.part(1, 2, mutations)));
  }

  @Test
  void aFenceBelowTheRegionsEpochIsRefusedAndLowersNothing() throws IOException {
    Fenced fence = fenceWithLease(0);
    fence.before(Batches.fenceOf(7));
    assertThrows(DoNotRetryIOException.class, () -> fence.before(Batches.fenceOf(6)));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(6)));
    fence.before(Batches.fenceOf(7));
  }

  @Test
  void aFenceWaitsForABatchOfALowerEpochToEnd() throws Exception {
    Fenced fence = new Fenced(new Fence(clock::get, 10_000), new Leases(4));
    MiniBatchOperationInProgress<Mutation> old = letIn(fence, Batches.putOf(4));
    ExecutorService threads = Executors.newSingleThreadExecutor();
    try {
      Future<?> fencing = threads.submit(() -> {
        fence.before(Batches.fenceOf(5));
        return null;
      });
      assertThrows(TimeoutException.class, () -> fencing.get(100, TimeUnit.MILLISECONDS));
      fence.leave(old);
      fencing.get(5, TimeUnit.SECONDS);
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  void aFenceWaitsForNoBatchOfItsOwnEpochOrOfNone() throws IOException {
    Fenced fence = fenceWithLease(5);
    letIn(fence, Batches.putOf(5));
    letIn(fence, Batches.put("row"));
    fence.before(Batches.fenceOf(5));
  }

  @Test
  void aFenceThatWaitsTooLongFailsToBeTriedAgainAndStillRefusesNewWrites() throws IOException {
    Fenced fence = fenceWithLease(4);
    MiniBatchOperationInProgress<Mutation> old = letIn(fence, Batches.putOf(4));
    IOException late = assertThrows(IOException.class, () -> fence.before(Batches.fenceOf(5)));
    assertFalse(late instanceof DoNotRetryIOException);
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(4)));
    fence.leave(old);
    fence.before(Batches.fenceOf(5));
  }

  @Test
  void aRefusedBatchHoldsBackNoFence() throws IOException {
    Fenced fence = fenceWithLease(5);
    MiniBatchOperationInProgress<Mutation> refused = Batches.of(Batches.putOf(4));
    fence.before(Batches.putOf(4));
    assertThrows(DoNotRetryIOException.class, () -> fence.enter(refused));
    fence.leave(refused); // HBase calls the last hook after an exception in the first, too
    fence.before(Batches.fenceOf(6));
    assertEquals(Fence.NONE_IN_FLIGHT, fence.fence.oldestInFlightMs());
  }

  @Test
  void theEndOfABatchThatWasNeverLetInIsIgnored() throws IOException {
    Fenced fence = fenceWithLease(4);
    letIn(fence, Batches.putOf(4));
    fence.leave(Batches.of(Batches.putOf(4))); // an earlier coprocessor had refused it
    assertThrows(IOException.class, () -> fence.before(Batches.fenceOf(5)));
  }

  @Test
  void aBatchWhoseEndWasNeverToldHoldsBackNoFenceOnceItIsGarbage() throws Exception {
    Fenced fence = fenceWithLease(4);
    letIn(fence, Batches.putOf(4)); // and nobody holds it
    for (int tries = 0; tries < 50; tries++) {
      System.gc();
      try {
        fence.before(Batches.fenceOf(5));
        return;
      } catch (IOException stillThere) {
        Thread.sleep(20);
      }
    }
    throw new AssertionError("the fence waits for a batch that is over");
  }

  @Test
  void aRegionJustOpenedLetsNothingInBeforeTheLeaseWasReadAfterItsOpening() throws IOException {
    long before = System.nanoTime();
    AtomicLong askedFor = new AtomicLong();
    Leases leases = new Leases(5) {
      @Override
      public synchronized Floors readAfter(long openedNanos, long timeoutMs) {
        askedFor.set(openedNanos);
        return floors;
      }
    };
    Fenced fence = new Fenced(new Fence(clock::get, FENCE_WAIT_MS), leases);
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(4)));
    assertTrue(askedFor.get() - before >= 0);
    fence.leave(letIn(fence, Batches.putOf(5)));
  }

  @Test
  void aWriteIsTriedAgainWhileTheLeaseCannotBeRead() throws IOException {
    AtomicInteger reads = new AtomicInteger();
    Leases leases = new Leases(5) {
      @Override
      public synchronized Floors readAfter(long openedNanos, long timeoutMs) throws IOException {
        if (reads.incrementAndGet() == 1) {
          throw new IOException("the system table is not there");
        }
        return floors;
      }
    };
    Fenced fence = new Fenced(new Fence(clock::get, FENCE_WAIT_MS), leases);
    IOException unknown = assertThrows(IOException.class, () -> letIn(fence, Batches.putOf(5)));
    assertFalse(unknown instanceof DoNotRetryIOException);
    fence.leave(letIn(fence, Batches.put("row"))); // no epoch, no question
    fence.leave(letIn(fence, Batches.putOf(5)));
    fence.leave(letIn(fence, Batches.putOf(5)));
    assertEquals(2, reads.get());
  }

  @Test
  void aWriteIsTriedAgainWhereTheCoprocessorDidNotStart() throws IOException {
    Fenced fence = new Fenced(new Fence(clock::get, FENCE_WAIT_MS), null);
    IOException unknown = assertThrows(IOException.class, () -> letIn(fence, Batches.putOf(5)));
    assertTrue(unknown.getMessage().contains("did not start"), unknown.getMessage());
    assertFalse(unknown instanceof DoNotRetryIOException);
    fence.leave(letIn(fence, Batches.put("row")));
  }

  @Test
  void aBatchThatCameAroundTheFirstHookIsNotLetInUnknown() {
    Fenced fence = fenceWithLease(5);
    IOException unknown = assertThrows(IOException.class, () -> fence.enter(Batches.of(Batches.putOf(5))));
    assertFalse(unknown instanceof DoNotRetryIOException);
  }

  @Test
  void theLateFenceOfAFormerLeaderDoesNotStandInForTheLease() throws IOException {
    Fenced fence = fenceWithLease(7);
    fence.before(Batches.fenceOf(5));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(6)));
  }

  @Test
  void aFenceIsHonouredBeforeTheLeaseIsRead() throws IOException {
    Fenced fence = fenceWithLease(3); // what a read saw that began before the new leader wrote its own
    fence.before(Batches.fenceOf(5));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(4)));
  }

  @Test
  void anAttributeThatIsNoEpochIsRefused() {
    Fenced fence = fenceWithLease(0);
    Mutation shortEpoch = Batches.put("row");
    shortEpoch.setAttribute(Fence.EPOCH, new byte[] {1, 2});
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, shortEpoch));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(-1)));
    Mutation emptyFence = Batches.put("row");
    emptyFence.setAttribute(Fence.FENCE, new byte[0]);
    assertThrows(DoNotRetryIOException.class, () -> fence.before(emptyFence));
  }

  // Shards.

  private Fenced fenceWithShards(long epoch) {
    return new Fenced(new Fence(clock::get, FENCE_WAIT_MS), new Leases(9, epoch));
  }

  @Test
  void aFenceOfOneShardRefusesItsFormerOwnerAndNobodyElse() throws IOException {
    Fenced fence = fenceWithShards(3);
    fence.before(Batches.fenceOf(5, 6, 4));
    for (int shard : new int[] {5, 6}) {
      DoNotRetryIOException refused =
          assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(shard, 3)));
      assertTrue(refused.getMessage().contains("basalt fenced: epoch 3 of shard " + shard), refused.getMessage());
      fence.leave(letIn(fence, Batches.putOf(shard, 4)));
    }
    fence.leave(letIn(fence, Batches.putOf(4, 3)));
    fence.leave(letIn(fence, Batches.putOf(7, 3)));
    fence.leave(letIn(fence, Batches.putOf(9)));
    fence.leave(letIn(fence, Batches.put("row")));
  }

  @Test
  void aFenceOfTheLeaderSaysNothingOfShardsNorTheOtherWayRound() throws IOException {
    Fenced fence = fenceWithShards(3);
    fence.before(Batches.fenceOf(20));
    fence.leave(letIn(fence, Batches.putOf(5, 3)));
    fence.before(Batches.fenceOf(0, 1023, 30));
    fence.leave(letIn(fence, Batches.putOf(20)));
  }

  @Test
  void oneMutationOfAShardThatWasTakenRefusesItsMiniBatch() throws IOException {
    Fenced fence = fenceWithShards(3);
    fence.before(Batches.fenceOf(5, 5, 4));
    Mutation[] many = new Mutation[20];
    for (int index = 0; index < many.length; index++) {
      many[index] = Batches.putOf(index, 4);
    }
    fence.leave(letIn(fence, many));
    many[5] = Batches.putOf(5, 3);
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, many));
  }

  @Test
  void aFenceWaitsForABatchInFlightThatHoldsItsShards() throws Exception {
    Fenced fence = new Fenced(new Fence(clock::get, 10_000), new Leases(1, 3));
    MiniBatchOperationInProgress<Mutation> old = letIn(fence, Batches.putOf(4, 3), Batches.putOf(5, 3), Batches.putOf(6, 3));
    ExecutorService threads = Executors.newSingleThreadExecutor();
    try {
      Future<?> fencing = threads.submit(() -> {
        fence.before(Batches.fenceOf(5, 5, 4));
        return null;
      });
      assertThrows(TimeoutException.class, () -> fencing.get(100, TimeUnit.MILLISECONDS));
      fence.leave(old);
      fencing.get(5, TimeUnit.SECONDS);
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  void aFenceWaitsForNoBatchOfOtherShards() throws IOException {
    Fenced fence = fenceWithShards(3);
    letIn(fence, Batches.putOf(4, 3), Batches.putOf(6, 3));
    letIn(fence, Batches.putOf(9));
    letIn(fence, Batches.put("row"));
    fence.before(Batches.fenceOf(5, 5, 4));
    letIn(fence, Batches.putOf(5, 4));
    fence.before(Batches.fenceOf(5, 5, 4)); // sent again
  }

  @Test
  void aFenceOfShardsThatComesTooLateRaisesNothing() throws IOException {
    Fenced fence = fenceWithShards(3);
    fence.before(Batches.fenceOf(5, 5, 8));
    assertThrows(DoNotRetryIOException.class, () -> fence.before(Batches.fenceOf(0, 1023, 7)));
    fence.leave(letIn(fence, Batches.putOf(4, 3)));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(5, 7)));
  }

  @Test
  void aRegionJustOpenedLearnsTheEpochsOfShardsBeforeItLetsOneIn() throws IOException {
    Fenced fence = fenceWithShards(4);
    assertThrows(IOException.class, () -> fence.enter(Batches.of(Batches.putOf(5, 4))));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(5, 3)));
    fence.leave(letIn(fence, Batches.putOf(5, 4)));
  }

  @Test
  void anAttributeThatIsNoShardIsRefused() {
    Fenced fence = fenceWithShards(1);
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(Floors.SHARDS, 1)));
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, Batches.putOf(0x8000, 1)));
    Mutation shortShard = Batches.put("row");
    shortShard.setAttribute(Fence.SHARD, new byte[] {1, 2});
    assertThrows(DoNotRetryIOException.class, () -> letIn(fence, shortShard));
  }

  @Test
  void theOldestBatchInFlightIsTold() throws IOException {
    Fenced fence = fenceWithLease(0);
    assertEquals(Fence.NONE_IN_FLIGHT, fence.fence.oldestInFlightMs());
    MiniBatchOperationInProgress<Mutation> first = letIn(fence, Batches.put("a"));
    long firstMs = clock.getAndAdd(5);
    MiniBatchOperationInProgress<Mutation> second = letIn(fence, Batches.put("b"));
    assertEquals(firstMs, fence.fence.oldestInFlightMs());
    fence.leave(first);
    assertEquals(firstMs + 5, fence.fence.oldestInFlightMs());
    fence.leave(second);
    assertEquals(Fence.NONE_IN_FLIGHT, fence.fence.oldestInFlightMs());
  }

  @Test
  void aBatchThatTookLongIsRememberedWithTheTimeItWasLetIn() throws IOException {
    Fenced fence = fenceWithLease(0);
    MiniBatchOperationInProgress<Mutation> quick = letIn(fence, Batches.put("a"));
    clock.addAndGet(Fence.SLOW_BATCH_MS);
    fence.leave(quick);
    assertNull(fence.fence.slowBatch());
    MiniBatchOperationInProgress<Mutation> slow = letIn(fence, Batches.put("b"));
    long letInMs = clock.getAndAdd(Fence.SLOW_BATCH_MS + 1);
    fence.leave(slow);
    assertNotNull(fence.fence.slowBatch());
    assertEquals(letInMs, fence.fence.slowBatch().admittedMs);
    assertEquals(clock.get(), fence.fence.slowBatch().endedMs);
    fence.fence.forgetSlowBatch(fence.fence.slowBatch());
    assertNull(fence.fence.slowBatch());
  }

  /**
   * Writers and fences as HBase runs them: row lock and updates lock around the batch, fences outside, flushes that
   * want the updates lock for themselves. Whenever a fence has returned, nothing of a lower epoch is applied any
   * more.
   */
  @Test
  void noWriteOfALowerEpochIsAppliedAfterAFenceHasReturned() {
    assertTimeoutPreemptively(Duration.ofSeconds(30), () -> {
      Race race = new Race();
      race.run();
      assertEquals(0, race.lateWrites.get());
      assertTrue(race.applied.get() > 0 && race.refused.get() > 0, "both kinds of write must have happened");
    });
  }

  private final class Race {
    static final int WRITERS = 6;
    static final int EPOCHS = 40;
    final Fenced fence = new Fenced(new Fence(clock::get, 10_000), new Leases(1));
    final ReentrantReadWriteLock updates = new ReentrantReadWriteLock();
    final Object[] rows = {new Object(), new Object()};
    final AtomicLong fenced = new AtomicLong(1);
    final AtomicLong leading = new AtomicLong(1);
    final AtomicInteger lateWrites = new AtomicInteger();
    final AtomicInteger applied = new AtomicInteger();
    final AtomicInteger refused = new AtomicInteger();
    final CountDownLatch done = new CountDownLatch(1);

    void run() throws Exception {
      ExecutorService threads = Executors.newCachedThreadPool();
      List<Future<?>> all = new ArrayList<>();
      for (int writer = 0; writer < WRITERS; writer++) {
        int row = writer % rows.length;
        all.add(threads.submit(() -> {
          while (done.getCount() > 0) {
            write(leading.get(), row);
          }
          return null;
        }));
      }
      all.add(threads.submit(() -> {
        while (!done.await(1, TimeUnit.MILLISECONDS)) {
          updates.writeLock().lock();
          updates.writeLock().unlock();
        }
        return null;
      }));
      for (long epoch = 2; epoch <= EPOCHS; epoch++) {
        Thread.sleep(3);
        fence.before(Batches.fenceOf(epoch));
        fenced.set(epoch);
        Thread.sleep(1); // while the former leader still writes
        leading.set(epoch);
      }
      done.countDown();
      for (Future<?> one : all) {
        one.get();
      }
      threads.shutdown();
    }

    private void write(long epoch, int row) throws Exception {
      Mutation put = Batches.putOf(epoch);
      fence.before(put);
      MiniBatchOperationInProgress<Mutation> batch = Batches.of(put);
      synchronized (rows[row]) {
        updates.readLock().lock();
        try {
          fence.enter(batch);
          Thread.sleep(1); // the log's sync
          if (epoch < fenced.get()) {
            lateWrites.incrementAndGet();
          }
          applied.incrementAndGet();
        } catch (DoNotRetryIOException fencedOff) {
          refused.incrementAndGet();
        } finally {
          updates.readLock().unlock();
        }
      }
      fence.leave(batch);
    }
  }
}
