package io.basalt.peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Work on a Kafka broker. Each line of standard input is a piece of work, each line of standard output the seconds that it took:
 *
 * <pre>
 * fill TOPIC MESSAGES PARTITIONS         publish messages of 1 KB, as many in each partition; makes TOPIC and TOPIC-made
 * transform TOPIC MESSAGES SIZE CLIENTS  read all of it as a new group; publish as much, in transactions of SIZE messages
 * </pre>
 *
 * Time runs from the moment when every client has its first messages.
 */
public final class KafkaWork {
  private static final int MESSAGE_BYTES = 1_024;
  private static final long FIRST_MESSAGES_MS_MAX = 60_000;

  private final String servers;
  private int round;

  private KafkaWork(String servers) {
    this.servers = servers;
  }

  public static void main(String[] arguments) throws Exception {
    KafkaWork work = new KafkaWork(arguments[0]);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      int messages = Integer.parseInt(words[2]);
      double seconds = words[0].equals("fill")
          ? work.fill(words[1], messages, Integer.parseInt(words[3]))
          : work.transform(words[1], messages, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
      System.out.println(seconds);
    }
  }

  private Map<String, Object> options() {
    Map<String, Object> options = new HashMap<>();
    options.put("bootstrap.servers", servers);
    return options;
  }

  private double fill(String topic, int messages, int partitions) throws Exception {
    try (Admin admin = Admin.create(options())) {
      admin.createTopics(List.of(
          new NewTopic(topic, partitions, (short) 1), new NewTopic(topic + "-made", partitions, (short) 1))).all().get();
    }
    long start = System.nanoTime();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(options(), new ByteArraySerializer(), new ByteArraySerializer())) {
      byte[] payload = payload();
      for (int number = 0; number < messages; number++) {
        producer.send(new ProducerRecord<>(topic, number % partitions, null, payload));
      }
    }
    return (System.nanoTime() - start) / 1e9;
  }

  private static byte[] payload() {
    byte[] payload = new byte[MESSAGE_BYTES];
    new Random(7).nextBytes(payload);
    return payload;
  }

  private double transform(String topic, int messages, int size, int clients) throws Exception {
    String group = "round-" + round++;
    List<Long> times = new ArrayList<>(); // when all begin, and when all are done
    CyclicBarrier all = new CyclicBarrier(clients, () -> times.add(System.nanoTime()));
    ExecutorService threads = Executors.newFixedThreadPool(clients);
    List<Future<?>> done = new ArrayList<>();
    for (int client = 0; client < clients; client++) {
      int partition = client;
      done.add(threads.submit(() -> {
        new Client(topic, group, partition, size).work(messages / clients, all);
        return null;
      }));
    }
    for (Future<?> each : done) {
      each.get();
    }
    threads.shutdown();
    return (times.get(1) - times.get(0)) / 1e9;
  }

  /** One client of a group, with a partition that is its own, so that nothing is dealt anew in between. */
  private final class Client {
    private final TopicPartition source;
    private final String made;
    private final int size;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;

    Client(String topic, String group, int partition, int size) {
      this.source = new TopicPartition(topic, partition);
      this.made = topic + "-made";
      this.size = size;
      Map<String, Object> reading = options();
      reading.put("group.id", group);
      reading.put("enable.auto.commit", false);
      reading.put("auto.offset.reset", "earliest");
      reading.put("isolation.level", "read_committed");
      reading.put("max.poll.records", size);
      this.consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
      Map<String, Object> writing = options();
      writing.put("batch.size", 1 << 20); // as few requests, and so syncs, as a transaction can do with
      writing.put("transactional.id", group + "-" + partition);
      this.producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
    }

    void work(int messages, CyclicBarrier all) throws Exception {
      try (consumer; producer) {
        producer.initTransactions();
        consumer.assign(List.of(source));
        List<ConsumerRecord<byte[], byte[]>> batch = batch(size);
        all.await();
        for (int left = messages; left > 0; ) {
          commit(batch);
          left -= batch.size();
          if (left > 0) {
            batch = batch(Math.min(size, left));
          }
        }
        all.await();
      }
    }

    private List<ConsumerRecord<byte[], byte[]>> batch(int wanted) {
      List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>(wanted);
      long stop = System.nanoTime() + FIRST_MESSAGES_MS_MAX * 1_000_000;
      while (found.size() < wanted) {
        consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        if (System.nanoTime() > stop) {
          throw new IllegalStateException(source + " has no more messages");
        }
      }
      return found;
    }

    private void commit(List<ConsumerRecord<byte[], byte[]>> batch) {
      producer.beginTransaction();
      for (ConsumerRecord<byte[], byte[]> each : batch) {
        producer.send(new ProducerRecord<>(made, source.partition(), null, each.value()));
      }
      long next = batch.get(batch.size() - 1).offset() + 1;
      producer.sendOffsetsToTransaction(Map.of(source, new OffsetAndMetadata(next)), consumer.groupMetadata());
      producer.commitTransaction();
    }
  }
}
