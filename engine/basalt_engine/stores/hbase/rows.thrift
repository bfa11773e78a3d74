// What the store says to HBase's second Thrift gateway: the calls of THBaseService that read and write rows, each with
// the fields that are used. Numbers are HBase's own (hbase-thrift 2.5 to 3.0); a field that is left out keeps its default.

struct TColumn {
  1: required binary family
  2: optional binary qualifier
  3: optional i64 timestamp
}

struct TColumnValue {
  1: required binary family
  2: required binary qualifier
  3: required binary value
  4: optional i64 timestamp
}

struct TResult {
  1: optional binary row
  2: required list<TColumnValue> columnValues
}

enum TDeleteType {
  DELETE_COLUMN = 0
  DELETE_COLUMNS = 1
  DELETE_FAMILY = 2
}

enum TDurability {
  USE_DEFAULT = 0
  SKIP_WAL = 1
  ASYNC_WAL = 2
  SYNC_WAL = 3
}

struct TGet {
  1: required binary row
  2: optional list<TColumn> columns
}

struct TPut {
  1: required binary row
  2: required list<TColumnValue> columnValues
  3: optional i64 timestamp
  5: optional map<binary, binary> attributes
  6: optional TDurability durability
}

struct TDelete {
  1: required binary row
  2: optional list<TColumn> columns
  3: optional i64 timestamp
  4: optional TDeleteType deleteType
  6: optional map<binary, binary> attributes
  7: optional TDurability durability
}

struct TScan {
  1: optional binary startRow
  2: optional binary stopRow
  3: optional list<TColumn> columns
  4: optional i32 caching
  7: optional binary filterString
  11: optional bool reversed
  12: optional bool cacheBlocks
  15: optional i32 limit
}

exception TIOError {
  1: optional string message
}

service THBaseService {
  TResult get(1: required binary table, 2: required TGet tget) throws (1: TIOError io)
  list<TResult> getScannerResults(
    1: required binary table, 2: required TScan tscan, 3: i32 numRows
  ) throws (1: TIOError io)
  void put(1: required binary table, 2: required TPut tput) throws (1: TIOError io)
  void putMultiple(1: required binary table, 2: required list<TPut> tputs) throws (1: TIOError io)
  void deleteSingle(1: required binary table, 2: required TDelete tdelete) throws (1: TIOError io)
  list<TDelete> deleteMultiple(1: required binary table, 2: required list<TDelete> tdeletes) throws (1: TIOError io)
  bool checkAndPut(
    1: required binary table, 2: required binary row, 3: required binary family, 4: required binary qualifier,
    5: binary value, 6: required TPut tput
  ) throws (1: TIOError io)
  i32 getThriftServerType()
}
