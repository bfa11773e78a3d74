// The part of HBase's second Thrift interface (thrift2, HBase 2.5 and later) that Basalt calls: rows, and the administration
// of tables. Field numbers and types are HBase's; what is not used is left out, which the protocol allows: a reader skips
// fields that it does not know.

exception TIOError {
  1: optional string message
  2: optional bool canRetry
}

exception TIllegalArgument {
  1: optional string message
}

struct TTableName {
  1: optional binary ns
  2: required binary qualifier
}

// A family's options travel as attributes, under the names that the HBase shell has for them.
struct TColumnFamilyDescriptor {
  1: required binary name
  2: optional map<binary, binary> attributes
}

struct TTableDescriptor {
  1: required TTableName tableName
  2: optional list<TColumnFamilyDescriptor> columns
  3: optional map<binary, binary> attributes
  4: optional i32 durability
}

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

service THBaseService {
  TResult get(1: required binary table, 2: required TGet tget) throws (1: TIOError io)
  bool checkAndPut(
    1: required binary table, 2: required binary row, 3: required binary family, 4: required binary qualifier,
    5: binary value, 6: required TPut tput
  ) throws (1: TIOError io)
  list<TResult> getScannerResults(1: required binary table, 2: required TScan tscan, 3: i32 numRows) throws (1: TIOError io)
  void put(1: required binary table, 2: required TPut tput) throws (1: TIOError io)
  void putMultiple(1: required binary table, 2: required list<TPut> tputs) throws (1: TIOError io)
  void deleteSingle(1: required binary table, 2: required TDelete tdelete) throws (1: TIOError io)
  list<TDelete> deleteMultiple(1: required binary table, 2: required list<TDelete> tdeletes) throws (1: TIOError io)

  TTableDescriptor getTableDescriptor(1: required TTableName table) throws (1: TIOError io)
  list<TTableName> getTableNamesByPattern(1: optional string regex, 2: required bool includeSysTables) throws (1: TIOError io)
  bool tableExists(1: TTableName tableName) throws (1: TIOError io)
  void createTable(1: required TTableDescriptor desc, 2: optional list<binary> splitKeys) throws (1: TIOError io)
  void modifyTable(1: required TTableDescriptor desc) throws (1: TIOError io)
  void deleteTable(1: required TTableName tableName) throws (1: TIOError io)
  void enableTable(1: required TTableName tableName) throws (1: TIOError io)
  void disableTable(1: required TTableName tableName) throws (1: TIOError io)
  bool isTableEnabled(1: required TTableName tableName) throws (1: TIOError io)
  i32 getThriftServerType()
  string getClusterId()
}
