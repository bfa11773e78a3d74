package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import io.basalt.hbase.fence.Batches;
import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.fence.WriteGuard;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.knowledge.InstallationTables;
import io.basalt.hbase.knowledge.Knowledge;
import io.basalt.hbase.rule.FilterPass;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.hbase.client.Put;
import org.junit.jupiter.api.Test;

/**
 * Regions on two servers, in any order of events: writes of failed writers, flushes, compactions beside each other,
 * moves, crashes with replay, splits, merges, stale and missing snapshots, rows that cannot be judged. Whatever the
 * reports let go by the prune rule must have left no row anywhere.
 */
class CertificatesModelTest {
  private static final int SEEDS = 400;
  private static final int STEPS = 600;
  private static final long LIFETIME_MS = 600_000;
  private static final long CLOCKS_DIFFER_MS = 3_600_000;

  @Test
  void noWriterIsForgottenWhileARowOfItIsLeft() throws Exception {
    int pruned = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
      World world = new World(seed);
      try {
        for (int step = 0; step < STEPS; step++) {
          world.step();
        }
      } catch (AssertionError wrong) {
        throw new AssertionError("seed " + seed + ": " + wrong.getMessage(), wrong);
      }
      pruned += world.pruned;
    }
    assertTrue(pruned > SEEDS, "writers must be forgotten, too: " + pruned);
  }

  private static final class Compaction {
    final Object request = new Object();
    final Set<String> inputs = new TreeSet<>();
    FilterPass pass;
  }

  private static final class Server {
    final String name;
    Snapshot snapshot;
    RegionReporter reporter;

    Server(World world, String name) {
      this.name = name;
      this.reporter = new RegionReporter(world.rows, name, 30_000, () -> world.nowMs);
    }

    void report() {
      reporter.tick(snapshot, Collections.emptyMap());
    }
  }

  private static final class Region {
    final RegionFake view;
    final Certificates certificates = new Certificates();
    final Map<String, List<Long>> files = new HashMap<>();
    final List<Compaction> compactions = new ArrayList<>();
    List<Long> memory = new ArrayList<>();
    List<Long> flushing;
    FilterPass flush;
    Server server;

    Region(String name) {
      view = new RegionFake(name);
      view.modifiedMs = 0;
    }

    void add(String file, List<Long> cells) {
      files.put(file, cells);
      view.files.add(file);
    }
  }

  private static final class Rows extends InstallationTables {
    final Map<String, byte[]> rows = new HashMap<>();
    boolean fails;

    Rows() {
      super(null, "basalt");
    }

    @Override
    public byte[] report(String name) throws IOException {
      if (fails) {
        throw new IOException("not now");
      }
      return rows.get(name);
    }

    @Override
    public void putReport(String name, byte[] body) throws IOException {
      if (fails) {
        throw new IOException("not now");
      }
      rows.put(name, body);
    }
  }

  private final class World {
    final Random random;
    final Rows rows = new Rows();
    final List<Server> servers = new ArrayList<>();
    final List<Region> regions = new ArrayList<>();
    final TreeSet<Long> open = new TreeSet<>();
    final TreeSet<Long> invalid = new TreeSet<>();
    final TreeSet<Long> failed = new TreeSet<>(); // for ever, unlike the invalid list
    long nowMs = 1_700_000_000_000L;
    long sequence;
    long pointers;
    int names;
    int pruned;

    World(long seed) {
      random = new Random(seed);
      servers.add(new Server(this, "one,1,1"));
      servers.add(new Server(this, "two,1,1"));
      for (int count = 0; count < 2; count++) {
        open(new Region("r" + names++), any(servers));
      }
    }

    <T> T any(List<T> items) {
      return items.get(random.nextInt(items.size()));
    }

    void step() throws Exception {
      nowMs += random.nextInt(4) == 0 ? random.nextInt(1_200_000) : random.nextInt(5_000);
      Region region = any(regions);
      switch (random.nextInt(20)) {
        case 0: case 1: begin(); break;
        case 2: end(); break;
        case 3: case 4: case 5: write(region); break;
        case 6: case 7: refresh(any(servers)); break;
        case 8: case 9: beginFlush(region); break;
        case 10: case 11: endFlush(region); break;
        case 12: beginCompaction(region); break;
        case 13: case 14: endCompaction(region); break;
        case 15: case 16: case 17: tick(); break;
        case 18: prune(); break;
        default: change(region); break;
      }
    }

    void change(Region region) {
      switch (random.nextInt(12)) {
        case 0: case 1: move(region); break;
        case 2: crash(any(servers)); break;
        case 3: split(region); break;
        case 4: merge(); break;
        case 5: load(region); break;
        default: break;
      }
    }

    /** Loads in bulk what failed writers wrote; the operator takes away the region's report, which knows nothing. */
    void load(Region region) {
      region.add("bulk" + names++, new ArrayList<>(invalid));
      rows.rows.remove(region.view.encodedName);
    }

    void begin() {
      pointers = Math.max(pointers + 1, nowMs * WritePointers.POINTERS_PER_MS);
      open.add(pointers);
    }

    void end() {
      if (!open.isEmpty()) {
        long writer = any(new ArrayList<>(open));
        open.remove(writer);
        if (random.nextInt(3) > 0) {
          invalid.add(writer);
          failed.add(writer);
        }
      }
    }

    /** By a writer that is open, or failed and does not know it; the write guard lets in what it does. */
    void write(Region region) {
      List<Long> writers = new ArrayList<>(open);
      writers.addAll(failed);
      if (writers.isEmpty()) {
        return;
      }
      long writer = any(writers);
      Put put = Batches.put("row").addColumn(
          Batches.FAMILY, new byte[] {'t'}, java.nio.ByteBuffer.allocate(8).putLong(writer).array());
      try {
        WriteGuard.ofMessages().check(Batches.of(put), Knowledge.NOTHING.withSnapshot(region.server.snapshot), nowMs);
      } catch (IOException refused) {
        return;
      }
      region.memory.add(writer);
      region.view.oldestEditMs = Math.min(region.view.oldestEditMs, nowMs);
    }

    void refresh(Server server) {
      long decided = open.isEmpty() ? pointers : open.first() - 1;
      server.snapshot = new SnapshotBytes().sequence(++sequence).timeMs(nowMs).writePointer(pointers).decided(decided)
          .lifetimeMsMax(LIFETIME_MS).invalid(invalid.stream().mapToLong(Long::longValue).toArray()).build();
    }

    List<Long> filter(FilterPass pass, List<Long> cells) {
      List<Long> kept = new ArrayList<>();
      for (long writer : cells) {
        if (random.nextInt(60) == 0) {
          pass.keptUnjudged(writer);
          kept.add(writer);
        } else if (pass.snapshot() == null || !pass.snapshot().isInvalid(writer)) {
          pass.kept(writer);
          kept.add(writer);
        }
      }
      return kept;
    }

    void beginFlush(Region region) {
      if (region.flushing == null && !region.memory.isEmpty()) {
        region.flushing = region.memory;
        region.memory = new ArrayList<>();
        region.view.oldestEditMs = LiveRegion.EMPTY;
        region.view.flushing = true;
        region.flush = region.certificates.flushBegins(region.server.snapshot);
      }
    }

    void endFlush(Region region) {
      if (region.flushing != null) {
        String file = "f" + names++;
        List<Long> kept = filter(region.flush, region.flushing);
        region.certificates.flushed(file, nowMs);
        region.add(file, kept);
        region.flushing = null;
        region.view.flushing = false;
      }
    }

    void beginCompaction(Region region) {
      Set<String> free = new TreeSet<>(region.files.keySet());
      region.compactions.forEach(running -> free.removeAll(running.inputs));
      Compaction compaction = new Compaction();
      for (String file : free) {
        if (random.nextBoolean()) {
          compaction.inputs.add(file);
        }
      }
      if (!compaction.inputs.isEmpty() && region.compactions.size() < 2) {
        compaction.pass = region.certificates.compactionBegins(
            compaction.request, compaction.inputs, region.server.snapshot, nowMs);
        region.compactions.add(compaction);
      }
    }

    void endCompaction(Region region) {
      if (region.compactions.isEmpty()) {
        return;
      }
      Compaction compaction = any(region.compactions);
      region.compactions.remove(compaction);
      if (random.nextInt(5) == 0) {
        return; // it failed
      }
      List<Long> cells = new ArrayList<>();
      compaction.inputs.forEach(input -> cells.addAll(region.files.get(input)));
      String file = "c" + names++;
      List<Long> kept = filter(compaction.pass, cells);
      region.certificates.compacted(compaction.request, file, nowMs);
      region.files.keySet().removeAll(compaction.inputs);
      region.view.files.removeAll(compaction.inputs);
      region.add(file, kept);
    }

    void tick() {
      rows.fails = random.nextInt(5) == 0;
      any(servers).report();
      rows.fails = false;
      any(servers).report();
    }

    void open(Region region, Server server) {
      region.server = server;
      regions.add(region);
      server.reporter.opened(region.view, region.certificates, new Fence(() -> nowMs));
    }

    void close(Region region) {
      endFlush(region);
      beginFlush(region);
      endFlush(region);
      region.server.reporter.closing(region.view.encodedName);
      region.view.files.clear();
      region.server.reporter.closed(region.view.encodedName);
      regions.remove(region);
      if (random.nextBoolean()) {
        region.server.report();
      }
    }

    void move(Region region) {
      close(region);
      Region moved = new Region(region.view.encodedName);
      region.files.forEach(moved::add);
      open(moved, any(servers));
    }

    /** The server is gone with what it knew; its regions are replayed elsewhere, before they are reported. */
    void crash(Server server) {
      List<Region> lost = new ArrayList<>(regions);
      lost.removeIf(region -> region.server != server);
      servers.remove(server);
      Server heir = any(servers);
      servers.add(new Server(this, server.name.split(",")[0] + ",1," + ++names));
      for (Region region : lost) {
        regions.remove(region);
        Region replayed = new Region(region.view.encodedName);
        region.files.forEach(replayed::add);
        replayed.server = heir;
        replayed.memory.addAll(region.memory);
        if (region.flushing != null) {
          replayed.memory.addAll(region.flushing);
        }
        beginFlush(replayed);
        endFlush(replayed);
        open(replayed, heir);
      }
    }

    void split(Region parent) {
      if (regions.size() >= 5) {
        return;
      }
      close(parent);
      for (int half = 0; half < 2; half++) {
        Region daughter = new Region("d" + names++);
        for (Map.Entry<String, List<Long>> file : parent.files.entrySet()) {
          List<Long> part = new ArrayList<>(file.getValue());
          part.removeIf(cell -> random.nextBoolean()); // rows of one writer lie in both
          daughter.add(file.getKey() + "." + parent.view.encodedName, part);
        }
        open(daughter, half == 0 ? parent.server : any(servers));
      }
    }

    void merge() {
      if (regions.size() < 3) {
        return;
      }
      Region merged = new Region("m" + names++);
      for (int parents = 0; parents < 2; parents++) {
        Region parent = any(regions);
        close(parent);
        parent.files.forEach((file, cells) -> merged.add(file + "." + parent.view.encodedName, cells));
      }
      open(merged, any(servers));
    }

    /** The rule as the prune job applies it. */
    void prune() throws CorruptionException {
      for (long writer : new ArrayList<>(invalid)) {
        if (mayGo(writer)) {
          for (Region region : regions) {
            Set<Long> left = new HashSet<>(region.memory);
            region.files.values().forEach(left::addAll);
            if (region.flushing != null) {
              left.addAll(region.flushing);
            }
            if (left.contains(writer)) {
              fail("writer " + writer + " is forgotten with rows in " + region.view.encodedName);
            }
          }
          invalid.remove(writer);
          pruned++;
        }
      }
    }

    boolean mayGo(long writer) throws CorruptionException {
      long endMs = writer / WritePointers.POINTERS_PER_MS + LIFETIME_MS + CLOCKS_DIFFER_MS;
      for (Region region : regions) {
        byte[] body = rows.rows.get(region.view.encodedName);
        RegionReport report = body == null ? null : RegionReport.decode(body);
        if (report == null
            || !report.place.server.equals(region.server.name)
            || report.snapshot.epoch < 0
            || report.reportMs <= endMs
            || report.oldestEditMs != RegionReport.NONE && report.oldestEditMs <= endMs) {
          return false;
        }
        for (RegionReport.StoreFile file : report.files) {
          if (file.certificate.decided < writer
              && writer <= file.certificate.newest + CLOCKS_DIFFER_MS * WritePointers.POINTERS_PER_MS) {
            return false;
          }
        }
      }
      return true;
    }
  }
}
