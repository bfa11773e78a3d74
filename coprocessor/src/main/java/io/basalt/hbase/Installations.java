package io.basalt.hbase;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;

/**
 * The installations that this process serves, by region server and table prefix: one for all regions, whatever their table.
 *
 * <p>HBase's own place for shared things is one per coprocessor class name. Ours are four, and after an upgrade the same
 * name means a class of another jar, to which the old one's objects are strangers. A constant of this class is shared by
 * exactly the classes of one loaded jar. The last region that is closed stops the refresher, so that a jar that was
 * replaced leaves nothing behind.
 */
final class Installations {
  static final Installations OF_THIS_JAR = new Installations();

  private final Map<String, Shared> shared = new HashMap<>();

  /** The installation of this key, made and its refresher started if there is none. To be given back by {@link #release}. */
  synchronized Installation acquire(String key, Supplier<Installation> maker) {
    Shared found = shared.get(key);
    if (found == null) {
      found = new Shared(maker.get());
      Thread thread = new Thread(found.installation.refresher, "basalt-refresher-" + key);
      thread.setDaemon(true);
      thread.start();
      shared.put(key, found);
    }
    found.uses++;
    return found.installation;
  }

  synchronized void release(String key) {
    Shared found = shared.get(key);
    if (found != null && --found.uses == 0) {
      shared.remove(key);
      found.installation.refresher.stop();
    }
  }

  synchronized int size() {
    return shared.size();
  }

  private static final class Shared {
    final Installation installation;
    int uses;

    Shared(Installation installation) {
      this.installation = installation;
    }
  }
}
