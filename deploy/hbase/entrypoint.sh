#!/bin/bash
# One process of the container image: master (with region server and ZooKeeper), thrift or thrift2; or `answers`, the health
# check of a gateway. Outside a container HBASE_HOME and HBASE_DATA say where it finds its parts and keeps its tables.
set -euo pipefail

home=${HBASE_HOME:-/opt/hbase}
data=${HBASE_DATA:-/var/lib/hbase}
zookeeper=${ZOOKEEPER_PORT:-2181}
bind=${BIND:-0.0.0.0}

run() {
    exec java "-Xmx${HEAP_MB:-$1}m" \
        "-Dbasalt.hbase.directory=$data" "-Dbasalt.hbase.zookeeper.port=$zookeeper" \
        "@$home/jvm.options" -classpath "$home/conf:$home/lib/*" "${@:2}"
}

# Thrift 1's getTableNames, or Thrift 2's getTableNamesByNamespace("default"), and a reply that is no exception. A master that
# is still starting keeps the gateway waiting, hence the time-out.
answers() {
    local call
    if [ "$1" = thrift ]; then
        call='\x80\x01\x00\x01\x00\x00\x00\x0dgetTableNames\x00\x00\x00\x01\x00'
    else
        call='\x80\x01\x00\x01\x00\x00\x00\x18getTableNamesByNamespace\x00\x00\x00\x01'
        call+='\x0b\x00\x01\x00\x00\x00\x07default\x00'
    fi
    exec 3<>"/dev/tcp/127.0.0.1/$2"
    printf '%b' "$call" >&3
    [ "$(timeout 5 head -c 4 <&3 | od -An -tx1 | tr -d ' ')" = 80010002 ]
}

case ${1:-} in
    master)
        # Who ran in an earlier container is of no use to this one, and ZooKeeper would be waited for on its behalf.
        rm -rf "$data/data/zookeeper"
        run 1024 org.apache.hadoop.hbase.master.HMaster start
        ;;
    thrift) run 512 org.apache.hadoop.hbase.thrift.ThriftServer start --port "${PORT:-9090}" --bind "$bind" --infoport -1 ;;
    thrift2) run 512 org.apache.hadoop.hbase.thrift2.ThriftServer start --port "${PORT:-9091}" --bind "$bind" --infoport -1 ;;
    answers) answers "$2" "$3" ;;
    *)
        echo "usage: $0 master | thrift | thrift2 | answers thrift|thrift2 PORT" >&2
        exit 2
        ;;
esac
