package io.basalt.hbase.report;

import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * The knowledge of one region about its store files: the failed writers of which each can still hold cells.
 *
 * <p>A file gets its certificate when HBase has written it and before it becomes part of the store, in {@code
 * postFlush} and {@code postCompact}. A file that has none is of unknown origin: it was loaded in bulk, written
 * before the coprocessor was installed, replayed without its hooks, or flushed shortly before a crash. Files never
 * change, and their names are never used again, so a certificate holds wherever the file is found: what a region's
 * former server or a region's parents had reported is taken over ({@link #recover}).
 *
 * <p>Flushes of a region follow one another; compactions run beside each other and are told apart by their request.
 */
public final class Certificates {
  private final Map<String, Entry> entries = new HashMap<>();
  private final List<Compaction> compactions = new ArrayList<>();
  private FilterPass flush;
  private long changes;

  private static final class Entry {
    final FileCertificate certificate;
    /** True when the store was seen to have it: a file that was, and is not any more, has been compacted away. */
    boolean listed;

    Entry(FileCertificate certificate) {
      this.certificate = certificate;
    }
  }

  /** A compaction that has begun. HBase says nothing of one that fails; its request becomes garbage. */
  private static final class Compaction {
    final WeakReference<Object> request;
    final FilterPass pass;
    /** What holds of all its inputs holds of its output, whatever the pass itself did. */
    final FileCertificate inputs;

    Compaction(Object request, FilterPass pass, FileCertificate inputs) {
      this.request = new WeakReference<>(request);
      this.pass = pass;
      this.inputs = inputs;
    }
  }

  /** A flush is about to be filtered. One that failed has been given up by then. */
  public synchronized FilterPass flushBegins(Snapshot snapshot) {
    flush = new FilterPass(snapshot);
    return flush;
  }

  /** The flush has written this file, perhaps one of several. */
  public synchronized void flushed(String file, long nowMs) {
    if (flush == null) {
      certify(file, FileCertificate.UNDECIDED, WritePointers.lastIn(nowMs));
      return;
    }
    // Write pointers run ahead of the clock after the leader's was set back: a row's own pointer counts, too.
    long newest = Math.max(WritePointers.lastIn(nowMs), flush.newestSeen());
    Snapshot snapshot = flush.snapshot();
    certify(file, flush.decided(), snapshot == null ? newest : Math.max(newest, snapshot.writePointer));
  }

  /** A compaction of these files is about to be filtered. */
  public synchronized FilterPass compactionBegins(
      Object request, Collection<String> inputs, Snapshot snapshot, long nowMs) {
    long decided = inputs.isEmpty() ? FileCertificate.UNDECIDED : WritePointers.POINTER_MAX;
    long newest = 0;
    for (String input : inputs) {
      FileCertificate known = of(input);
      decided = Math.min(decided, known == null ? FileCertificate.UNDECIDED : known.decided);
      newest = Math.max(newest, known == null ? WritePointers.lastIn(nowMs) : known.newest);
    }
    FilterPass pass = new FilterPass(snapshot);
    forgetCompactionsThatFailed();
    compactions.add(new Compaction(request, pass, new FileCertificate(decided, newest)));
    return pass;
  }

  /** The compaction has written this file, perhaps one of several. */
  public synchronized void compacted(Object request, String file, long nowMs) {
    for (Compaction compaction : compactions) {
      if (compaction.request.get() == request) {
        long decided = Math.max(compaction.inputs.decided, compaction.pass.decided());
        certify(file, decided, Math.max(compaction.inputs.newest, compaction.pass.newestSeen()));
        return;
      }
    }
    certify(file, FileCertificate.UNDECIDED, WritePointers.lastIn(nowMs));
  }

  /** The certificate of a file, or null when its origin is unknown. */
  synchronized FileCertificate of(String file) {
    Entry entry = entries.get(file);
    return entry == null ? null : entry.certificate;
  }

  /** Takes over what was reported of a file elsewhere. Its own certificate, if it has one, says the same. */
  synchronized void recover(String file, FileCertificate certificate) {
    if (!entries.containsKey(file)) {
      entries.put(file, new Entry(certificate));
      changes++;
    }
  }

  /** These are the store's files now: what was one and is none any more is forgotten. */
  synchronized void listed(Set<String> files) {
    for (Iterator<Map.Entry<String, Entry>> each = entries.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry<String, Entry> next = each.next();
      if (files.contains(next.getKey())) {
        next.getValue().listed = true;
      } else if (next.getValue().listed) {
        each.remove();
      }
    }
  }

  /** All certificates by the name of their file, sorted. */
  synchronized Map<String, FileCertificate> all() {
    Map<String, FileCertificate> all = new TreeMap<>();
    for (Map.Entry<String, Entry> entry : entries.entrySet()) {
      all.put(entry.getKey(), entry.getValue().certificate);
    }
    return all;
  }

  /** Rises with each certificate. */
  synchronized long changes() {
    return changes;
  }

  private void certify(String file, long decided, long newest) {
    entries.put(file, new Entry(new FileCertificate(decided, newest)));
    changes++;
  }

  private void forgetCompactionsThatFailed() {
    for (Iterator<Compaction> each = compactions.iterator(); each.hasNext(); ) {
      if (each.next().request.get() == null) {
        each.remove();
      }
    }
  }
}
