package io.basalt.hbase.gateway;

import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.thrift.ThriftServer;

/** The two Thrift gateways of HBase, each started when it is first asked for, on a free port of this machine. */
final class ThriftGateways {
  private static final String HOST = "127.0.0.1";
  private static final int WAITS_MAX = 600; // of 50 ms: a gateway is up within a second or two
  private static final int FIRST_PORT = 20_000;
  private static final int EPHEMERAL_PORT = 32_000; // below the range from which Linux serves outgoing connections
  private static final int TRIES_MAX = 100;

  private final Configuration configuration;
  private int port;
  private int port2;

  ThriftGateways(Configuration configuration) {
    this.configuration = configuration;
  }

  synchronized int port() throws Exception {
    if (port == 0) {
      port = start(new ThriftServer(new Configuration(configuration)), "thrift");
    }
    return port;
  }

  synchronized int port2() throws Exception {
    if (port2 == 0) {
      port2 = start(new org.apache.hadoop.hbase.thrift2.ThriftServer(new Configuration(configuration)), "thrift2");
    }
    return port2;
  }

  private static int start(ThriftServer server, String name) throws Exception {
    int free = freePort();
    String[] arguments = {"-p", Integer.toString(free), "-b", HOST, "--infoport", "-1", "start"};
    Thread thread =
        new Thread(
            () -> {
              try {
                server.run(arguments);
              } catch (Exception error) {
                error.printStackTrace();
              }
            },
            name);
    thread.setDaemon(true);
    thread.start();
    for (int waits = 0; ; waits++) {
      try (Socket socket = new Socket()) {
        socket.connect(new InetSocketAddress(HOST, free));
        return free;
      } catch (IOException error) {
        if (waits == WAITS_MAX || !thread.isAlive()) {
          throw error;
        }
        Thread.sleep(50);
      }
    }
  }

  /** A port that nobody has, and that no outgoing connection of this machine is given until the gateway listens there. */
  private static int freePort() throws IOException {
    for (int tries = 0; ; tries++) {
      int port = ThreadLocalRandom.current().nextInt(FIRST_PORT, EPHEMERAL_PORT);
      try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getByName(HOST))) {
        return socket.getLocalPort();
      } catch (BindException error) {
        if (tries == TRIES_MAX) {
          throw error;
        }
      }
    }
  }
}
