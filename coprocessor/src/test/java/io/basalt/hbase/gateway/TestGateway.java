package io.basalt.hbase.gateway;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import py4j.GatewayServer;

/**
 * Lets the Python tests reach Java: what they call is an object of this class.
 *
 * <p>The first line of standard input is the token without which nobody may call; the port is printed once calls are
 * taken. The process ends with its parent, when standard input does: whatever runs in it ends then too.
 */
public final class TestGateway {
  private final Twins twins = new Twins();

  private TestGateway() {}

  /** The rules and codecs that exist in both languages. */
  public Twins twins() {
    return twins;
  }

  /** Starts an HBase on HDFS in this process, with its files under {@code directory}. */
  public MiniCluster startCluster(String directory, int regionServers) throws Exception {
    return MiniCluster.start(directory, regionServers);
  }

  public static void main(String[] arguments) throws IOException {
    // Whatever else is written goes to the log: nobody reads this end of the pipe any more, and a full one would stop
    // the writer.
    PrintStream answer = System.out;
    System.setOut(System.err);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    String token = input.readLine();
    GatewayServer server =
        new GatewayServer.GatewayServerBuilder(new TestGateway())
            .javaAddress(InetAddress.getLoopbackAddress())
            .javaPort(0)
            .authToken(token)
            .build();
    server.start();
    answer.println("PORT " + server.getListeningPort());
    while (input.readLine() != null) {
      // Nothing more is ever said; the end of the input is what counts.
    }
    // A cluster has non-daemon threads, and hooks that wait for one another.
    Runtime.getRuntime().halt(0);
  }
}
