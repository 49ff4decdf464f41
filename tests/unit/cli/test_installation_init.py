import json
import os
import stat
import subprocess
from pathlib import Path

from penstock.config import defaults, load
from tests.support.forked_commands import forked_penstock


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        [*forked_penstock(), *arguments],
        cwd=folder,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_writes_the_defaults_the_folder_and_private_keys(tmp_path: Path) -> None:
    done = run(tmp_path, "init", "--json")
    assert done.returncode == 0, done.stderr
    data = tmp_path / "penstock-data"
    assert json.loads(done.stdout) == {
        "config": "penstock.yaml",
        "data": str(data),
        "wrote": [
            "penstock.yaml",
            f"{data}/",
            f"{data}/keys/audit-signing.key",
            f"{data}/keys/pseudonym.key",
            f"{data}/keys/consent.key",
            f"{data}/keys/broker.key",
            f"{data}/keys/kafka-credentials.key",
            f"{data}/keys/masks.key",
            f"{data}/keys/domain.key",
        ],
    }
    config = load(tmp_path / "penstock.yaml", {})
    assert config.data == defaults(tmp_path, {}).data
    assert config.gateway.filtering.claims_need_right
    assert mode(tmp_path / "penstock.yaml") == 0o644
    assert mode(data) == mode(data / "keys") == 0o700
    for _, secret in config.secrets():
        assert len(secret.read()) >= 32
    assert sorted(item.name for item in tmp_path.iterdir()) == ["penstock-data", "penstock.yaml"]


def test_an_existing_file_is_kept_unless_forced_and_keys_always(tmp_path: Path) -> None:
    assert run(tmp_path, "init").returncode == 0
    path = tmp_path / "penstock.yaml"
    original = path.read_text()
    keys = {item: item.read_bytes() for item in (tmp_path / "penstock-data/keys").iterdir()}
    path.write_text("log: {level: debug}\n")
    refused = run(tmp_path, "init")
    assert refused.returncode == 2
    assert "'penstock.yaml' exists already" in refused.stderr
    assert "--force" in refused.stderr
    assert path.read_text() == "log: {level: debug}\n"
    forced = run(tmp_path, "init", "--force")
    assert forced.returncode == 0
    assert path.read_text() == original
    assert {item: item.read_bytes() for item in keys} == keys
    assert "key" not in forced.stdout.replace("penstock", "")


def test_it_writes_where_the_user_says(tmp_path: Path) -> None:
    done = run(tmp_path, "--config", "etc/one.yaml", "init", PENSTOCK_DATA="../var")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc" / "one.yaml").exists()
    assert (tmp_path / "var" / "keys" / "pseudonym.key").exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "--config", "file/penstock.yaml", "init")
    assert done.returncode == 3
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_output_says_the_next_step(tmp_path: Path) -> None:
    done = run(tmp_path, "init")
    assert done.stdout.startswith("wrote penstock.yaml\n")
    assert "penstock doctor" in done.stdout
    assert done.stderr == ""
