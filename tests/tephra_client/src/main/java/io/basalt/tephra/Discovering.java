package io.basalt.tephra;

import java.util.Collections;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.Transaction;
import org.apache.tephra.distributed.PooledClientProvider;
import org.apache.tephra.distributed.TransactionServiceClient;
import org.apache.twill.discovery.ZKDiscoveryService;
import org.apache.twill.zookeeper.ZKClientService;

/**
 * An application that knows only ZooKeeper: it looks for the service there, as Tephra's clients do on a cluster.
 *
 * <p>Arguments: the ensemble. Prints what a transaction had for an id, once it has committed.
 */
public final class Discovering {
  private Discovering() {}

  public static void main(String[] arguments) throws Exception {
    ZKClientService zookeeper = ZKClientService.Builder.of(arguments[0]).build();
    zookeeper.startAndWait();
    Configuration configuration = new Configuration(false);
    configuration.set("data.tx.client.retry.strategy", "n-times");
    configuration.set("data.tx.client.retry.attempts", "1");
    TransactionServiceClient client = new TransactionServiceClient(
        configuration, new PooledClientProvider(configuration, new ZKDiscoveryService(zookeeper)), "discovering");
    Transaction transaction = client.startShort();
    client.canCommitOrThrow(transaction, Collections.singleton(new byte[] {1}));
    client.commitOrThrow(transaction);
    System.out.println("committed " + transaction.getTransactionId());
    System.exit(0); // the clients keep threads of their own
  }
}
