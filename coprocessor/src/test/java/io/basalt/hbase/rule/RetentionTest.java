package io.basalt.hbase.rule;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.TopicRule.OnInvalid;
import io.basalt.hbase.format.Vectors;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The rule, as its vectors say it: through the filter that reads a row's cells, in a compaction of all files. */
class RetentionTest {
  static List<Vectors.Vector> verdicts() {
    return Vectors.read("retention");
  }

  @ParameterizedTest
  @MethodSource("verdicts")
  void aRowGetsTheVerdictOfItsVector(Vectors.Vector vector) {
    JsonObject meaning = vector.object();
    List<Cell> row = row(vector.data, meaning);
    JsonElement snapshot = meaning.get("snapshot");
    SnapshotBytes bytes = new SnapshotBytes().decided(Long.MAX_VALUE);
    if (meaning.has("lifetimeMsMax")) {
      bytes.lifetimeMsMax(meaning.get("lifetimeMsMax").getAsLong());
    }
    boolean isKnown = !snapshot.isJsonNull();
    FilterPass pass = new FilterPass(
        isKnown ? bytes.invalid(Vectors.longs(snapshot.getAsJsonObject().get("invalid"))).build() : null);
    long nowMs = meaning.get("nowMs").getAsLong();
    Map<String, TopicRule> rules = rules(vector.data, meaning.get("topic"));
    Counters counters = new Counters();
    Verdict verdict;
    if (meaning.get("table").getAsString().equals("message")) {
      verdict = verdict(new MessageFilter(rules, pass, nowMs, true, counters), row);
    } else if (!isKnown && !meaning.get("reason").getAsString().equals("no snapshot")) {
      return; // the filter takes the lifetime from the snapshot; the rule alone is asked below
    } else {
      verdict = verdict(new PayloadFilter(rules, pass, nowMs, counters), row);
    }
    assertEquals(meaning.get("reason").getAsString(), verdict.reason);
    assertEquals(meaning.get("fate").getAsString(), verdict.fate.value);
  }

  @ParameterizedTest
  @MethodSource("verdicts")
  void aPayloadRowsRuleTakesTheLifetimeThatItIsGiven(Vectors.Vector vector) throws CorruptionException {
    JsonObject meaning = vector.object();
    String reason = meaning.get("reason").getAsString();
    if (!meaning.get("table").getAsString().equals("payload") || reason.equals(Verdict.UNREADABLE.reason)) {
      return;
    }
    PayloadKey key = PayloadKey.decode(vector.data);
    JsonElement snapshot = meaning.get("snapshot");
    Verdict verdict = Retention.judgePayload(
        key.generation,
        key.writePointer,
        key.writeMs,
        rules(vector.data, meaning.get("topic")).get(TopicPrefix.text(key.prefix, 0, key.prefix.length)),
        snapshot.isJsonNull()
            ? null
            : new SnapshotBytes().invalid(Vectors.longs(snapshot.getAsJsonObject().get("invalid"))).build(),
        meaning.get("lifetimeMsMax").getAsLong(),
        meaning.get("nowMs").getAsLong());
    assertEquals(reason, verdict.reason);
  }

  private static Verdict verdict(RowFilter filter, List<Cell> row) {
    return filter.verdict(row, 0);
  }

  private static List<Cell> row(byte[] key, JsonObject meaning) {
    List<Cell> row = new ArrayList<>();
    for (Map.Entry<String, JsonElement> column : meaning.get("columns").getAsJsonObject().entrySet()) {
      row.add(Rows.cell(key, column.getKey(), Vectors.unhex(column.getValue().getAsString()), 10));
    }
    return row;
  }

  private static Map<String, TopicRule> rules(byte[] key, JsonElement topic) {
    int end = TopicPrefix.end(key, key.length);
    if (topic.isJsonNull() || end == TopicPrefix.NONE) {
      return Collections.emptyMap();
    }
    JsonObject rule = topic.getAsJsonObject();
    OnInvalid onInvalid = OnInvalid.valueOf(rule.get("onInvalid").getAsString().toUpperCase(java.util.Locale.ROOT));
    return Collections.singletonMap(
        TopicPrefix.text(key, 1, end - 1),
        new TopicRule(
            rule.get("generation").getAsInt(),
            rule.get("ttlMs").getAsLong(),
            onInvalid,
            rule.has("truncatedBeforeMs") ? rule.get("truncatedBeforeMs").getAsLong() : 0));
  }

  @ParameterizedTest
  @CsvSource({"1,2,true", "2,2,false", "3,2,false", "1,-2,true", "2,-2,true", "3,-2,false", "4294967295,2147483647,false",
      "2147483646,-2147483647,true", "2147483647,-2147483647,true", "0,1,true"})
  void aGenerationIsOldBelowThePresentOneAndUpToADeletedOne(long generation, int current, boolean isOld) {
    assertEquals(isOld, Retention.isOldGeneration(generation, current));
  }

  @Test
  void timesThatDoNotFitKeepTheRow() {
    TopicRule rule = new TopicRule(1, Long.MAX_VALUE, OnInvalid.DROP);
    assertEquals(Verdict.NO_TRANSACTION, Retention.judgeMessage(1, 1, 0, -1, rule, null, Long.MAX_VALUE));
    assertEquals(Verdict.NO_SNAPSHOT, Retention.judgePayload(1, 1, 1, rule, null, Long.MAX_VALUE, Long.MAX_VALUE));
    TopicRule brief = new TopicRule(1, 1, OnInvalid.DROP);
    assertEquals(Verdict.NO_TRANSACTION, Retention.judgeMessage(1, Long.MIN_VALUE, 0, -1, brief, null, Long.MAX_VALUE));
    assertEquals(Verdict.EXPIRED, Retention.judgeMessage(1, Long.MAX_VALUE - 1, 0, -1, brief, null, Long.MAX_VALUE));
    assertEquals(Verdict.NO_TRANSACTION, Retention.judgeMessage(1, Long.MAX_VALUE, 0, -1, brief, null, Long.MAX_VALUE));
  }
}
