"""`penstock user`: what is told where Kafka is out of reach."""

from __future__ import annotations

from pathlib import Path

from penstock.components.processes import free_port
from tests.support.commands import run_command


def test_a_password_that_kafka_gets_later_is_in_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text("of the admin\n")
    (tmp_path / "penstock.yaml").write_text(
        f"kafka: {{bootstrap: '127.0.0.1:{free_port()}', security: sasl_plaintext, "
        f"timeout: 1s, password: {{file: {tmp_path}/secret}}}}\n"
    )
    done = run_command(tmp_path, "user", "add", "eva", "--generate")
    assert done.returncode == 3
    file = tmp_path / "penstock-data" / "keys" / "kafka-users" / "eva"
    assert f"the password is in {file}" in done.stderr
    assert len(file.read_text().strip()) == 32
