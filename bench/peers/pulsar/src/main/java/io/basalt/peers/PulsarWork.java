package io.basalt.peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Work on a Pulsar broker. Each line of standard input is a piece of work, each line of standard output the seconds that it took:
 *
 * <pre>
 * fill TOPIC MESSAGES             publish messages of 1 KB
 * transform TOPIC MESSAGES SIZE   read all of it with a new subscription; publish as much, in transactions of SIZE messages
 * consume TOPIC MESSAGES SIZE     read all of it with a new subscription, and acknowledge SIZE messages at a time
 * </pre>
 *
 * Time runs from the first messages on. Who transforms has the subscription alone, so that it may acknowledge all up to a message:
 * transactions that acknowledge messages one by one in a shared subscription come to a stand (4.0.0).
 */
public final class PulsarWork {
  private static final int MESSAGE_BYTES = 1_024;
  private static final int RECEIVE_S_MAX = 60;

  private final PulsarClient client;
  private int round;

  private PulsarWork(PulsarClient client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err); // where the client's log goes
    PulsarWork work =
        new PulsarWork(PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build());
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      int messages = Integer.parseInt(words[2]);
      double seconds;
      if (words[0].equals("fill")) {
        seconds = work.fill(words[1], messages);
      } else if (words[0].equals("consume")) {
        seconds = work.consume(words[1], messages, Integer.parseInt(words[3]));
      } else {
        seconds = work.transform(words[1], messages, Integer.parseInt(words[3]));
      }
      answers.println(seconds);
    }
    System.exit(0);
  }

  private double fill(String topic, int messages) throws Exception {
    subscribed(topic, "keeper", SubscriptionType.Shared).close(); // or what nobody has subscribed to is dropped
    byte[] payload = new byte[MESSAGE_BYTES];
    new Random(7).nextBytes(payload);
    long start = System.nanoTime();
    try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true).create()) {
      for (int number = 0; number < messages; number++) {
        producer.sendAsync(payload);
      }
      producer.flush();
    }
    return (System.nanoTime() - start) / 1e9;
  }

  private Consumer<byte[]> subscribed(String topic, String name, SubscriptionType type) throws Exception {
    ConsumerBuilder<byte[]> builder = client.newConsumer()
        .topic(topic)
        .subscriptionName(name)
        .subscriptionType(type)
        .enableBatchIndexAcknowledgment(true)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    return builder.subscribe();
  }

  private double consume(String topic, int messages, int size) throws Exception {
    try (Consumer<byte[]> consumer = subscribed(topic, "round-" + round++, SubscriptionType.Shared)) {
      int left = messages;
      List<Message<byte[]>> batch = received(consumer, size, left);
      long start = System.nanoTime();
      while (!batch.isEmpty()) {
        consumer.acknowledgeAsync(ids(batch)).get();
        left -= batch.size();
        batch = received(consumer, size, left);
      }
      return (System.nanoTime() - start) / 1e9;
    }
  }

  /** So many messages. Not by batchReceive, whose batches lose messages over their limit (4.0.0). */
  private static List<Message<byte[]>> received(Consumer<byte[]> consumer, int size, int left) throws Exception {
    List<Message<byte[]>> batch = new ArrayList<>(size);
    while (batch.size() < Math.min(size, left)) {
      Message<byte[]> next = consumer.receive(RECEIVE_S_MAX, TimeUnit.SECONDS);
      if (next == null) {
        throw new IllegalStateException("no message within " + RECEIVE_S_MAX + " s");
      }
      batch.add(next);
    }
    return batch;
  }

  private static List<MessageId> ids(List<Message<byte[]>> batch) {
    List<MessageId> ids = new ArrayList<>(batch.size());
    for (Message<byte[]> each : batch) {
      ids.add(each.getMessageId());
    }
    return ids;
  }

  private double transform(String topic, int messages, int size) throws Exception {
    try (Consumer<byte[]> consumer = subscribed(topic, "round-" + round++, SubscriptionType.Exclusive);
        Producer<byte[]> producer = client.newProducer()
            .topic(topic + "-made").sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).create()) {
      int left = messages;
      List<Message<byte[]>> batch = received(consumer, size, left);
      long start = System.nanoTime();
      while (!batch.isEmpty()) {
        commit(consumer, producer, batch);
        left -= batch.size();
        batch = received(consumer, size, left);
      }
      return (System.nanoTime() - start) / 1e9;
    }
  }

  private void commit(Consumer<byte[]> consumer, Producer<byte[]> producer, List<Message<byte[]>> batch)
      throws Exception {
    Transaction transaction = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
    List<CompletableFuture<?>> sent = new ArrayList<>();
    for (Message<byte[]> each : batch) {
      sent.add(producer.newMessage(transaction).value(each.getValue()).sendAsync());
    }
    sent.add(consumer.acknowledgeCumulativeAsync(batch.get(batch.size() - 1).getMessageId(), transaction));
    for (CompletableFuture<?> each : sent) {
      each.get();
    }
    transaction.commit().get();
  }
}
