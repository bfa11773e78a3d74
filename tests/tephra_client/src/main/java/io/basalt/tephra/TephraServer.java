package io.basalt.tephra;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.distributed.TransactionServiceThriftHandler;
import org.apache.tephra.distributed.thrift.TTransactionServer;
import org.apache.tephra.metrics.DefaultMetricsCollector;
import org.apache.tephra.persist.LocalFileTransactionStateStorage;
import org.apache.tephra.rpc.ThriftRPCServer;
import org.apache.tephra.snapshot.SnapshotCodecProvider;
import org.apache.tephra.txprune.TransactionPruningService;

/**
 * Tephra's own transaction server with its local edit log, without ZooKeeper: what bench/tephra.py measures against.
 *
 * <p>Arguments: a directory for its log, how many entries its invalid list has at the start, and a file for its port.
 */
public final class TephraServer {
  private TephraServer() {}

  public static void main(String[] arguments) throws Exception {
    Path folder = Files.createDirectories(Path.of(arguments[0]));
    int invalid = Integer.parseInt(arguments[1]);
    Configuration configuration = new Configuration(false);
    configuration.set("data.tx.snapshot.local.dir", folder.toString());
    DefaultMetricsCollector metrics = new DefaultMetricsCollector();
    TransactionManager manager =
        new TransactionManager(
            configuration,
            new LocalFileTransactionStateStorage(configuration, new SnapshotCodecProvider(configuration), metrics),
            metrics);
    ThriftRPCServer<TransactionServiceThriftHandler, TTransactionServer> server =
        ThriftRPCServer.builder(TTransactionServer.class)
            .setHost("127.0.0.1")
            .setPort(0)
            .setWorkerThreads(25)
            .setIOThreads(2)
            .setMaxReadBufferBytes(16 << 20)
            .build(new TransactionServiceThriftHandler(manager, new TransactionPruningService(configuration, manager)));
    server.startAndWait();
    for (int count = 0; count < invalid; count++) {
      Transaction transaction = manager.startShort();
      manager.invalidate(transaction.getTransactionId());
    }
    Path ready = Path.of(arguments[2]);
    Path partial = ready.resolveSibling(ready.getFileName() + ".partial");
    Files.write(partial, (server.getBindAddress().getPort() + "\n").getBytes(StandardCharsets.US_ASCII));
    Files.move(partial, ready, StandardCopyOption.ATOMIC_MOVE);
    Thread.currentThread().join();
  }
}
