package io.basalt.hbase.gateway;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HBaseTestingUtility;
import org.apache.hadoop.hbase.MiniHBaseCluster;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.StartMiniClusterOption;
import org.apache.hadoop.hbase.master.RegionState;
import org.apache.hadoop.hbase.metrics.Counter;
import org.apache.hadoop.hbase.metrics.Gauge;
import org.apache.hadoop.hbase.metrics.Histogram;
import org.apache.hadoop.hbase.metrics.Metric;
import org.apache.hadoop.hbase.metrics.MetricRegistries;
import org.apache.hadoop.hbase.metrics.MetricRegistry;
import org.apache.hadoop.hbase.regionserver.HRegionServer;
import org.apache.hadoop.hbase.util.JVMClusterUtil.RegionServerThread;
import org.apache.hbase.thirdparty.com.google.protobuf.ServiceException;

/** An HBase of several region servers on HDFS, all in this process, with both Thrift gateways in front. */
public final class MiniCluster {
  private static final long DEADLINE_MS = 60_000; // anything that takes longer hangs
  private static final long POLL_MS = 20;

  private final HBaseTestingUtility utility;
  private final MiniHBaseCluster cluster;
  private final ThriftGateways thrift;

  private MiniCluster(HBaseTestingUtility utility, MiniHBaseCluster cluster) throws IOException {
    this.utility = utility;
    this.cluster = cluster;
    this.thrift = new ThriftGateways(utility.getConfiguration());
  }

  static MiniCluster start(String directory, int regionServers) throws Exception {
    System.setProperty("test.build.data.basedirectory", directory);
    System.setProperty("hadoop.log.dir", directory);
    HBaseTestingUtility utility = new HBaseTestingUtility(configuration());
    StartMiniClusterOption option =
        StartMiniClusterOption.builder().numMasters(1).numRegionServers(regionServers).numDataNodes(1).build();
    return new MiniCluster(utility, utility.startMiniCluster(option));
  }

  private static Configuration configuration() {
    Configuration configuration = HBaseConfiguration.create();
    configuration.set("hbase.master.ipc.address", "127.0.0.1");
    configuration.set("hbase.regionserver.ipc.address", "127.0.0.1");
    // Two cores are to be enough: few handlers, and no balancer that moves what a test has placed.
    configuration.setInt("hbase.regionserver.handler.count", 12);
    configuration.setInt("hbase.regionserver.metahandler.count", 4);
    configuration.setInt("hbase.regionserver.info.port", -1);
    configuration.setInt("hbase.master.info.port", -1);
    configuration.setLong("hbase.balancer.period", 3_600_000);
    configuration.setInt("hbase.regionserver.msginterval", 300);
    configuration.setInt("dfs.datanode.handler.count", 4);
    configuration.setInt("hbase.client.pause", 50);
    // Flushes and compactions happen when a test asks for them.
    configuration.setInt("hbase.server.compactchecker.interval.multiplier", 1_000_000);
    configuration.setInt("hbase.hstore.compaction.min", 2);
    configuration.setBoolean("hbase.regionserver.compaction.enabled", false);
    configuration.setInt("hbase.hstore.blockingStoreFiles", 1_000);
    configuration.setInt("hbase.hregion.majorcompaction", 0);
    return configuration;
  }

  public Configuration getConfiguration() {
    return utility.getConfiguration();
  }

  public int thriftPort() throws Exception {
    return thrift.port();
  }

  public int thrift2Port() throws Exception {
    return thrift.port2();
  }

  public Tables tables() {
    return new Tables(this);
  }

  public StoreFiles files() {
    return new StoreFiles(this);
  }

  /** The region servers that run, each as "host,port,startcode". */
  public List<String> servers() {
    return running().stream().map(server -> server.getServerName().toString()).collect(Collectors.toList());
  }

  /** Ends a region server as a crash does: no region is closed, no memstore flushed. Returns when it is gone. */
  public void kill(String server) throws IOException, ReflectiveOperationException {
    ServerName name = ServerName.valueOf(server);
    HRegionServer ended = cluster.getRegionServer(name);
    cluster.killRegionServer(name);
    cluster.waitForRegionServerToStop(name, DEADLINE_MS);
    haveItReportNoMore(ended);
  }

  /** Ends a region server in good order. Returns when it is gone. */
  public void stop(String server) throws IOException, ReflectiveOperationException {
    ServerName name = ServerName.valueOf(server);
    HRegionServer ended = cluster.getRegionServer(name);
    cluster.stopRegionServer(name);
    cluster.waitForRegionServerToStop(name, DEADLINE_MS);
    haveItReportNoMore(ended);
  }

  /**
   * Ends what a server that is gone would still report of procedures. HBase looks for the master without a pause, and for as long as
   * the process lives: with a server in a process of its own that is not long, here it takes a core until the end of all tests.
   */
  private static void haveItReportNoMore(HRegionServer server) throws ReflectiveOperationException {
    Field master = HRegionServer.class.getDeclaredField("rssStub");
    master.setAccessible(true);
    InvocationHandler refuses =
        (proxy, method, arguments) -> {
          throw new ServiceException("this server is gone");
        };
    Class<?> calls = master.getType();
    master.set(server, Proxy.newProxyInstance(calls.getClassLoader(), new Class<?>[] {calls}, refuses));
  }

  /** Starts one more region server; returns its name when it has reported for duty. */
  public String startServer() throws IOException {
    return cluster.startRegionServerAndWait(DEADLINE_MS).getRegionServer().getServerName().toString();
  }

  /** Why each region server that aborted did so; none should, but those that were killed. */
  public List<String> aborted() {
    List<String> reasons = new ArrayList<>();
    for (RegionServerThread thread : cluster.getRegionServerThreads()) {
      HRegionServer server = thread.getRegionServer();
      if (server.isAborted() && !cluster.isKilledRS(server.getServerName())) {
        reasons.add(server.getServerName().toString());
      }
    }
    return reasons;
  }

  /** The name and value of each number that a coprocessor registered, over all servers of this process. */
  public byte[] metrics() throws IOException {
    Frames.Out output = new Frames.Out();
    for (MetricRegistry registry : MetricRegistries.global().getMetricRegistries()) {
      if (registry.getMetricRegistryInfo().getMetricsName().startsWith("Coprocessor.")) {
        for (Map.Entry<String, Metric> entry : registry.getMetrics().entrySet()) {
          Metric metric = entry.getValue();
          if (metric instanceof Counter) {
            output.text(entry.getKey()).number(((Counter) metric).getCount());
          } else if (metric instanceof Gauge && ((Gauge<?>) metric).getValue() instanceof Number) {
            output.text(entry.getKey()).number(((Number) ((Gauge<?>) metric).getValue()).longValue());
          } else if (metric instanceof Histogram) {
            output.text(entry.getKey() + ".max").number(((Histogram) metric).snapshot().getMax());
          }
        }
      }
    }
    return output.toBytes();
  }

  /**
   * Waits until no region is on its way from one server to another, or still said to be at one that has ended: the
   * master hears of that a moment later, and until then takes its regions for open.
   */
  public void settle() throws IOException {
    utility.waitFor(DEADLINE_MS, POLL_MS, this::isOpenAtTheLivingAlone);
    utility.waitUntilNoRegionsInTransition(DEADLINE_MS);
  }

  private boolean isOpenAtTheLivingAlone() {
    Set<ServerName> living = running().stream().map(HRegionServer::getServerName).collect(Collectors.toSet());
    return cluster.getMaster().getAssignmentManager().getRegionStates().getRegionStateNodes().stream()
        .filter(region -> region.isInState(RegionState.State.OPEN))
        .allMatch(region -> living.contains(region.getRegionLocation()));
  }

  List<HRegionServer> running() {
    return cluster.getLiveRegionServerThreads().stream()
        .map(RegionServerThread::getRegionServer)
        .filter(server -> !server.isStopped() && !server.isAborted())
        .collect(Collectors.toList());
  }

  HBaseTestingUtility utility() {
    return utility;
  }
}
