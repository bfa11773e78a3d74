package io.basalt.tephra;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.tephra.distributed.thrift.TBoolean;
import org.apache.tephra.distributed.thrift.TGenericException;
import org.apache.tephra.distributed.thrift.TInvalidTruncateTimeException;
import org.apache.tephra.distributed.thrift.TTransaction;
import org.apache.tephra.distributed.thrift.TTransactionConflictException;
import org.apache.tephra.distributed.thrift.TTransactionCouldNotTakeSnapshotException;
import org.apache.tephra.distributed.thrift.TTransactionNotInProgressException;
import org.apache.tephra.distributed.thrift.TTransactionServer;
import org.apache.thrift.protocol.TField;

/** Prints the field ids and types of every struct of Tephra's service, one line each: name, then id:type:name of its fields. */
public final class WireIds {
  private WireIds() {}

  public static void main(String[] arguments) throws Exception {
    List<String> lines = new ArrayList<>();
    for (Class<?> inner : TTransactionServer.class.getDeclaredClasses()) {
      if (inner.getSimpleName().endsWith("_args") || inner.getSimpleName().endsWith("_result")) {
        lines.add(line(inner));
      }
    }
    for (Class<?> type : new Class<?>[] {
          TBoolean.class, TGenericException.class, TInvalidTruncateTimeException.class, TTransaction.class,
          TTransactionConflictException.class, TTransactionCouldNotTakeSnapshotException.class,
          TTransactionNotInProgressException.class}) {
      lines.add(line(type));
    }
    Collections.sort(lines);
    lines.forEach(System.out::println);
  }

  private static String line(Class<?> struct) throws IllegalAccessException {
    List<String> fields = new ArrayList<>();
    for (Field each : struct.getDeclaredFields()) {
      if (each.getName().endsWith("_FIELD_DESC")) {
        each.setAccessible(true);
        TField field = (TField) each.get(null);
        fields.add(field.id + ":" + field.type + ":" + field.name);
      }
    }
    Collections.sort(fields);
    return struct.getSimpleName() + " " + String.join(" ", fields);
  }
}
