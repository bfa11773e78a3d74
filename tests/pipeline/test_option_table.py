"""The table of options: names in any case, kinds of values, uses, and the documents that list them."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt.api.markers import Idle
from basalt.errors import InputError
from basalt_engine.clock import ManualClock
from basalt_spark.connection import QualifiedTopic
from basalt_spark.option_table import OPTIONS, FrameUse
from basalt_spark.options import read_options

ID = "0000018bcfe568000001" + "00" * 10
NOW_MS = 1_700_000_000_000
SERVER = {"server": "http://127.0.0.1:4780"}
ORDERS = QualifiedTopic("default", "orders")


def parse(use: FrameUse = FrameUse.STREAM, **given: str):
    return read_options({**SERVER, "topic": "orders", **given}, use, ManualClock(NOW_MS))


def test_names_of_options_are_read_in_any_case_as_spark_gives_them():
    assert parse(maxrowspertrigger="5", FAILONDATALOSS="false").admission.rows_max == 5


def test_a_batch_read_refuses_what_is_for_streams():
    with pytest.raises(InputError, match="option maxRowsPerTrigger is for streams, not for batch reads"):
        parse(FrameUse.BATCH, maxRowsPerTrigger="5")


def test_units_are_read_as_people_write_them():
    options = parse(
        maxBytesPerTrigger="16 MiB", minRowsPerTrigger="10", maxTriggerDelay="5 minutes", watermarkIdleTimeout="250ms"
    )
    assert options.admission.bytes_max == 16 * 1024**2
    assert (options.admission.rows_min, options.admission.delay_ms_max) == (10, 300_000)
    assert options.idle == Idle(250, 1)


def test_every_option_is_described_in_the_documents():
    folder = Path(__file__).parents[2] / "docs" / "spark"
    described = "\n".join(path.read_text() for path in folder.glob("*.md"))
    assert [option.name for option in OPTIONS if f"`{option.name}`" not in described] == []


@pytest.mark.parametrize("name", ["tokenFile", "caFile", "certFile"])
def test_a_file_is_named_from_the_root_and_what_is_none_is_not_repeated(name):
    with pytest.raises(InputError, match=f"option {name}: what is given is no path that begins with a slash") as raised:
        parse(server="https://mq:4780", **{name: "basalt_s3cret"})
    assert "s3cret" not in str(raised.value)


def test_credentials_that_do_not_go_together_are_refused():
    with pytest.raises(InputError, match="options tokenEnv and tokenFile exclude each other"):
        parse(tokenEnv="BASALT_TOKEN", tokenFile="/run/token")
    with pytest.raises(InputError, match="option keyFile has no meaning without certFile"):
        parse(server="https://mq:4780", keyFile="/run/key.pem")
    for name in ("caFile", "certFile"):
        with pytest.raises(InputError, match=f"option {name} is for a server at https://"):
            parse(**{name: "/run/x.pem"})
