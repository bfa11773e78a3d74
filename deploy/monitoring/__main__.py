"""Writes what Prometheus and Grafana need of Basalt: `make monitoring`. With `--check` it names the files that lag behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.monitoring.dashboards import DASHBOARDS, model
from deploy.monitoring.rules import rules, rules_test

FOLDER = Path(__file__).resolve().parent
MEND = "run `make monitoring`, and look at what it changes"
_HEAD = "# Written by `make monitoring`; docs/operations/monitoring.md says how to use it.\n"


def files() -> Mapping[Path, str]:
    """Every file that is written here, as it should be."""
    written = {FOLDER / "rules.yml": _yaml(rules()), FOLDER / "rules_test.yml": _yaml(rules_test())}
    for dashboard in DASHBOARDS:
        written[FOLDER / dashboard.file_name] = json.dumps(model(dashboard), indent=2) + "\n"
    return written


def _yaml(content: dict[str, Any]) -> str:
    return _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=140)


def main(arguments: list[str]) -> int:
    """Write the files; with `--check` only name those that lag behind, and return 1 if there are some."""
    lagging = {path: wanted for path, wanted in files().items() if not path.exists() or path.read_text() != wanted}
    for path, wanted in lagging.items():
        print(path.name)
        if arguments != ["--check"]:
            path.write_text(wanted)
    if lagging and arguments == ["--check"]:
        print(f"These files lag behind the code: {MEND}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
