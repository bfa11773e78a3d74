package io.basalt.hbase.knowledge;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.TopicChanges;
import io.basalt.hbase.format.TopicChanges.Mark;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** What one region tells of its changed rows. */
class ChangedRowsTest {
  private static final byte[] END = {};
  private final ChangedRows rows = new ChangedRows(7);

  private void change(String... keys) {
    rows.changed(Arrays.stream(keys).map(key -> key.getBytes(StandardCharsets.US_ASCII)).collect(Collectors.toList()));
  }

  private static List<String> keys(TopicChanges told) {
    return told.keys.stream().map(key -> new String(key, StandardCharsets.US_ASCII)).collect(Collectors.toList());
  }

  @Test
  void whoKnowsNothingReadsAll() {
    TopicChanges told = rows.since(TopicChanges.NOTHING, END);
    assertTrue(told.all);
    assertEquals(7, told.mark.opened);
  }

  @Test
  void whoKnowsAllIsToldNothing() {
    change("a", "b");
    Mark mark = rows.since(TopicChanges.NOTHING, END).mark;
    TopicChanges told = rows.since(mark, END);
    assertFalse(told.all);
    assertEquals(Collections.emptyList(), keys(told));
  }

  @Test
  void eachIsToldOnceWhatChangedSinceItsMark() {
    Mark first = rows.since(TopicChanges.NOTHING, END).mark;
    change("a", "b");
    TopicChanges second = rows.since(first, END);
    change("a", "a");
    assertEquals(Arrays.asList("a", "b"), keys(second));
    assertEquals(Collections.singletonList("a"), keys(rows.since(second.mark, END)));
    assertEquals(Arrays.asList("b", "a"), keys(rows.since(first, END)));
  }

  @Test
  void aMarkOfAnotherOpeningOrOfACountToComeIsNone() {
    change("a");
    assertTrue(rows.since(new Mark(8, 1), END).all);
    assertTrue(rows.since(new Mark(7, 2), END).all);
  }

  @Test
  void whoMissedMoreThanIsRememberedReadsAll() {
    change("first");
    Mark early = rows.since(TopicChanges.NOTHING, END).mark;
    for (int index = 0; index < ChangedRows.ROWS_MAX; index++) {
      change("row-" + index);
    }
    assertEquals(ChangedRows.ROWS_MAX, rows.since(early, END).keys.size());
    change("last");
    assertTrue(rows.since(early, END).all);
    for (int index = 0; index < 3 * ChangedRows.ROWS_MAX; index++) {
      change("same");
    }
    Mark late = rows.since(TopicChanges.NOTHING, END).mark;
    change("same");
    assertEquals(Collections.singletonList("same"), keys(rows.since(late, END)));
  }

  @Test
  void whoChangesTheKeysLaterChangesNothingHere() {
    Mark mark = rows.since(TopicChanges.NOTHING, END).mark;
    byte[] key = {'a'};
    rows.changed(Collections.singletonList(key));
    key[0] = 'b';
    assertEquals(Collections.singletonList("a"), keys(rows.since(mark, END)));
  }
}
