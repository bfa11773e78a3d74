package io.basalt.tephra;

import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.InvalidTruncateTimeException;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionAware;
import org.apache.tephra.TransactionCodec;
import org.apache.tephra.TransactionConflictException;
import org.apache.tephra.TransactionContext;
import org.apache.tephra.TransactionFailureException;
import org.apache.tephra.TransactionNotInProgressException;
import org.apache.tephra.TransactionSizeException;
import org.apache.tephra.TransactionType;
import org.apache.tephra.distributed.PooledClientProvider;
import org.apache.tephra.distributed.TransactionServiceClient;
import org.apache.tephra.distributed.thrift.TTransactionNotInProgressException;
import org.apache.tephra.persist.TransactionSnapshot;
import org.apache.tephra.snapshot.SnapshotCodecProvider;

/**
 * An application on Tephra's own client, pointed at Basalt by two lines of configuration.
 *
 * <p>Arguments: the port of the Thrift face and that of the HTTP API, where the topic shop/orders exists. Prints one line for
 * each thing that it saw to be so, and fails at the first that is not.
 */
public final class Application {
  private final TransactionServiceClient client;
  private final TransactionCodec codec = new TransactionCodec();
  private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  private final String topic;
  private final Configuration configuration;

  private Application(String thriftPort, String httpPort) {
    configuration = new Configuration(false);
    configuration.set("data.tx.bind.address", "127.0.0.1");
    configuration.set("data.tx.bind.port", thriftPort);
    configuration.set("data.tx.client.retry.strategy", "n-times");
    configuration.set("data.tx.client.retry.attempts", "1");
    configuration.set("data.tx.client.count", "8");
    client = new TransactionServiceClient(configuration, new PooledClientProvider(configuration, null), "application");
    topic = "http://127.0.0.1:" + httpPort + "/v1/namespaces/shop/topics/orders/";
  }

  public static void main(String[] arguments) throws Exception {
    Application application = new Application(arguments[0], arguments[1]);
    application.startsAndCommits();
    application.losesAConflict();
    application.isToldWhatIsNotInProgress();
    application.isRefusedBadArguments();
    application.abortsAndInvalidates();
    application.checkpoints();
    application.truncates();
    application.readsTheState();
    application.announcesAChange();
    application.rollsParticipantsBack();
    application.worksInManyThreads();
    System.exit(0); // the client keeps threads of its own
  }

  private void startsAndCommits() throws Exception {
    check("status", client.status().equals("OK"));
    Transaction first = client.startShort();
    check("a start has its id as write pointer", first.getTransactionId() == first.getWritePointer());
    check("a start is short", first.getType() == TransactionType.SHORT);
    client.canCommitOrThrow(first, List.of(bytes("row")));
    client.commitOrThrow(first);
    Transaction second = client.startShort(5);
    check("a commit is read by the next", second.getReadPointer() == first.getTransactionId());
    check("the older calls answer true", client.canCommit(second, List.of()) && client.commit(second));
    client.commitOrThrow(second);
    say("a commit may be repeated");
  }

  private void losesAConflict() throws Exception {
    Transaction winner = client.startShort();
    Transaction loser = client.startShort();
    client.canCommitOrThrow(winner, List.of(bytes("row")));
    client.commitOrThrow(winner);
    TransactionConflictException conflict =
        expect(TransactionConflictException.class, () -> client.canCommitOrThrow(loser, List.of(bytes("row"))));
    check("a conflict names the transaction", conflict.getTransactionId() == loser.getTransactionId());
    check("a conflict names the key", "row".equals(conflict.getConflictingKey()));
    check("a conflict names the client", "application".equals(conflict.getConflictingClient()));
    check("the older call answers false", !client.commit(loser));
    client.abort(loser);
  }

  private void isToldWhatIsNotInProgress() throws Exception {
    Transaction ended = client.startShort();
    client.abort(ended);
    client.abort(ended);
    expect(TransactionNotInProgressException.class, () -> client.canCommitOrThrow(ended, List.of()));
    expect(TransactionNotInProgressException.class, () -> client.commitOrThrow(ended));
    // Tephra's client hands this one on as it came over the wire.
    expect(TTransactionNotInProgressException.class, () -> client.checkpoint(ended));
    check("what ended is not invalidated", !client.invalidate(ended.getTransactionId()));
  }

  private void isRefusedBadArguments() throws Exception {
    expect(IllegalArgumentException.class, () -> client.startShort(0));
    expect(IllegalArgumentException.class, () -> client.startShort(1_000_000));
    Transaction large = client.startShort();
    List<byte[]> changes = new ArrayList<>();
    for (int number = 0; number < 50_001; number++) {
      changes.add(bytes("row " + number));
    }
    expect(TransactionSizeException.class, () -> client.canCommitOrThrow(large, changes));
    client.canCommitOrThrow(large, changes.subList(0, 50_000));
    client.commitOrThrow(large);
    say("a change set at the limit is taken");
  }

  private void abortsAndInvalidates() throws Exception {
    Transaction failed = client.startShort();
    Transaction open = client.startShort();
    Transaction longOne = client.startLong();
    check("a long start is long", longOne.getType() == TransactionType.LONG);
    check("an open one is invalidated", client.invalidate(failed.getTransactionId()));
    client.abort(longOne);
    Transaction seeing = client.startShort();
    check("failed ones are excluded", Arrays.equals(seeing.getInvalids(), ids(failed, longOne)));
    check("open ones are excluded", Arrays.equals(seeing.getInProgress(), ids(open)));
    check("the first short one is known", seeing.getFirstShortInProgress() == open.getTransactionId());
    check("the invalid list has its size", client.getInvalidSize() == 2);
    client.abort(failed);
    check("an undone one leaves the list", client.getInvalidSize() == 1);
    client.abort(open);
    client.abort(seeing);
  }

  private void checkpoints() throws Exception {
    Transaction before = client.startShort();
    Transaction after = client.checkpoint(before);
    check("a checkpoint writes under a new pointer", after.getWritePointer() > before.getWritePointer());
    check("a checkpoint keeps the id", after.getTransactionId() == before.getTransactionId());
    check("a checkpoint is listed", Arrays.equals(after.getCheckpointWritePointers(), new long[] {after.getWritePointer()}));
    check("a checkpoint keeps the snapshot", after.getReadPointer() == before.getReadPointer());
    check("the codec gives back what it took", codec.decode(codec.encode(after)).toString().equals(after.toString()));
    client.commitOrThrow(after);
  }

  private void truncates() throws Exception {
    Transaction failed = client.startShort();
    Transaction open = client.startShort();
    client.invalidate(failed.getTransactionId());
    check("an id is truncated once", client.truncateInvalidTx(Set.of(failed.getTransactionId())));
    check("an id is not truncated twice", !client.truncateInvalidTx(Set.of(failed.getTransactionId())));
    expect(InvalidTruncateTimeException.class, () -> client.truncateInvalidTxBefore(System.currentTimeMillis() + 60_000));
    client.abort(open);
    check("what is older goes", client.truncateInvalidTxBefore(System.currentTimeMillis() + 60_000));
    check("nothing is left", client.getInvalidSize() == 0);
    client.pruneNow();
    say("pruning is started");
  }

  private void readsTheState() throws Exception {
    Transaction failed = client.startShort();
    Transaction winner = client.startShort();
    Transaction open = client.startShort();
    client.invalidate(failed.getTransactionId());
    client.canCommitOrThrow(winner, List.of(bytes("committed row")));
    client.commitOrThrow(winner);
    client.canCommitOrThrow(open, List.of(bytes("open row")));
    Transaction checked = client.checkpoint(open);
    TransactionSnapshot state;
    try (InputStream stream = client.getSnapshotInputStream()) {
      state = new SnapshotCodecProvider(configuration).decode(stream);
    }
    check("the state has the pointers",
        state.getReadPointer() == winner.getTransactionId() && state.getWritePointer() == checked.getWritePointer());
    check("the state has the invalid list", new ArrayList<>(state.getInvalid()).equals(List.of(failed.getTransactionId())));
    check("the state has those in progress",
        new ArrayList<>(state.getInProgress().keySet()).equals(List.of(open.getTransactionId(), checked.getWritePointer())));
    check("the state has their upper bound",
        state.getInProgress().get(open.getTransactionId()).getVisibilityUpperBound() == open.getVisibilityUpperBound());
    check("the state has the change sets",
        state.getCommittingChangeSets().get(open.getTransactionId()).toString().contains("open row")
            && state.getCommittedChangeSets().values().toString().contains("committed row"));
    client.abort(checked);
    client.abort(failed);
  }

  /** What is published under the write pointer shows with the commit, to polls that bring a transaction of Tephra's codec. */
  private void announcesAChange() throws Exception {
    Transaction early = client.startShort();
    Transaction writer = client.startShort();
    post("publish", "{\"transactionWritePointer\":" + writer.getWritePointer() + ",\"messages\":[\"paid\"]}");
    client.canCommitOrThrow(writer, List.of(bytes("account 17")));
    client.commitOrThrow(writer);
    Transaction late = client.startShort();
    check("a later transaction reads the message", poll(late).contains("paid"));
    check("an earlier one does not", !poll(early).contains("paid"));
    client.commitOrThrow(early);
    client.commitOrThrow(late);
  }

  private void rollsParticipantsBack() throws Exception {
    Table table = new Table("stock");
    TransactionContext context = new TransactionContext(client, table);
    context.start();
    table.change("apples");
    Transaction other = client.startShort();
    client.canCommitOrThrow(other, List.of(bytes("apples")));
    client.commitOrThrow(other);
    expect(TransactionConflictException.class, context::finish);
    context.abort();
    check("who loses is rolled back", table.story.equals(List.of("start", "change", "roll back")));
    context.start();
    table.change("apples");
    context.checkpoint();
    table.change("pears");
    context.finish();
    check("who wins is told", table.story.subList(3, table.story.size())
        .equals(List.of("start", "change", "commit", "update", "change", "commit", "post commit")));
  }

  private void worksInManyThreads() throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(8);
    List<Callable<Boolean>> work = new ArrayList<>();
    for (int number = 0; number < 200; number++) {
      byte[] change = bytes("thread row " + number);
      work.add(() -> {
        Transaction transaction = client.startShort();
        client.canCommitOrThrow(transaction, List.of(change));
        client.commitOrThrow(transaction);
        return true;
      });
    }
    for (Future<Boolean> done : threads.invokeAll(work)) {
      done.get();
    }
    threads.shutdown();
    check("nothing is left open", client.startShort().getInProgress().length == 0);
  }

  private String poll(Transaction transaction) throws Exception {
    StringBuilder text = new StringBuilder();
    for (byte each : codec.encode(transaction)) {
      text.append(String.format("\\u%04x", each & 0xff));
    }
    return post("poll", "{\"startFrom\":null,\"inclusive\":true,\"limit\":null,\"transaction\":{\"bytes\":\"" + text + "\"}}");
  }

  private String post(String call, String body) throws Exception {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(topic + call))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
    HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 200) {
      throw new AssertionError(call + ": " + answer.body());
    }
    return answer.body();
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static long[] ids(Transaction... transactions) {
    return Arrays.stream(transactions).mapToLong(Transaction::getTransactionId).toArray();
  }

  private interface Step {
    void run() throws Exception;
  }

  private static <E extends Exception> E expect(Class<E> type, Step step) throws Exception {
    try {
      step.run();
    } catch (Exception error) {
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        if (type.isInstance(cause)) {
          say(type.getSimpleName() + ": " + String.valueOf(cause.getMessage()).split("\n")[0]);
          return type.cast(cause);
        }
      }
      throw error;
    }
    throw new AssertionError("no " + type.getSimpleName());
  }

  private static void check(String what, boolean so) {
    if (!so) {
      throw new AssertionError(what);
    }
    say(what);
  }

  private static void say(String line) {
    System.out.println(line);
  }

  /** A participant that tells what was asked of it. */
  private static final class Table implements TransactionAware {
    final List<String> story = new ArrayList<>();
    private final String name;
    private final List<byte[]> changes = new ArrayList<>();

    Table(String name) {
      this.name = name;
    }

    void change(String row) {
      changes.add(bytes(row));
      story.add("change");
    }

    @Override
    public void startTx(Transaction transaction) {
      changes.clear();
      story.add("start");
    }

    @Override
    public void updateTx(Transaction transaction) {
      story.add("update");
    }

    @Override
    public Collection<byte[]> getTxChanges() {
      return Collections.unmodifiableList(changes);
    }

    @Override
    public boolean commitTx() {
      story.add("commit");
      return true;
    }

    @Override
    public void postTxCommit() {
      story.add("post commit");
    }

    @Override
    public boolean rollbackTx() {
      story.add("roll back");
      return true;
    }

    @Override
    public String getTransactionAwareName() {
      return name;
    }
  }
}
