package io.basalt.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Which package may name which: each only those that stand before it here. */
class PackagesTest {
  private static final List<String> ORDER = Arrays.asList("format", "rule", "knowledge", "fence", "report", "observer");
  private static final Path ROOT =
      Paths.get(System.getProperty("basedir", "."), "src", "main", "java", "io", "basalt", "hbase");
  private static final Pattern NAMED = Pattern.compile("\\bio\\.basalt\\.hbase\\.([a-z]+)\\.");

  private static List<Path> files(Path directory) throws IOException {
    try (Stream<Path> found = Files.walk(directory)) {
      return found.filter(Files::isRegularFile).collect(Collectors.toList());
    }
  }

  @Test
  void everyClassIsInOneOfThePackages() throws IOException {
    TreeSet<String> packages = new TreeSet<>();
    for (Path file : files(ROOT)) {
      packages.add(ROOT.relativize(file.getParent()).toString());
    }
    assertEquals(new TreeSet<>(ORDER), packages);
  }

  @Test
  void aPackageNamesOnlyThoseBelowIt() throws IOException {
    List<String> wrong = new ArrayList<>();
    for (String name : ORDER) {
      for (Path file : files(ROOT.resolve(name))) {
        Matcher named = NAMED.matcher(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
        while (named.find()) {
          if (ORDER.indexOf(named.group(1)) > ORDER.indexOf(name)) {
            wrong.add(ROOT.relativize(file) + " names " + named.group());
          }
        }
      }
    }
    assertEquals(Collections.emptyList(), wrong);
  }
}
