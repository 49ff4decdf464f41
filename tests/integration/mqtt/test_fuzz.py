"""A bounded run of the fuzzer over the MQTT reader; longer ones are started by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scale import scaled

FUZZ = Path(__file__).parents[2] / "fuzz"
SECONDS = scaled(20)
MEMORY_MB = 512


@pytest.mark.skipif(sys.platform != "linux", reason="atheris has wheels for Linux only")
def test_the_reader_survives_fuzzing(tmp_path: Path) -> None:
    found = tmp_path / "corpus"
    found.mkdir()
    # What a process had at most counts from before it became the fuzzer, and the one that runs
    # tests may be larger than the limit: a small one comes between.
    command = [
        *("/bin/sh", "-c", '"$@"; exit $?', "sh"),
        sys.executable,
        str(FUZZ / "fuzz_mqtt_reader.py"),
        str(found),
        str(FUZZ / "corpus" / "mqtt"),
        f"-max_total_time={SECONDS}",
        f"-runs={scaled(50_000)}",
        "-max_len=600",
        "-timeout=5",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={tmp_path}/",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS + 100
    )
    report = done.stderr[-3_000:]
    assert done.returncode == 0, report
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None, report
    assert int(runs[1]) > 100, report
    # Without instrumentation the fuzzer would run blind and find nothing.
    covered = [int(count) for count in re.findall(r"cov: (\d+)", done.stderr)]
    assert max(covered) > 300, report
