"""Event types go from the server of one domain to the data folder of another."""

from __future__ import annotations

from pathlib import Path

from penstock.config.secrets import SecretFile
from tests.support.commands import run_command
from tests.support.server.installation import ServerInstallation
from tests.support.trust.commands import key_of, run


def test_another_domain_fetches_types_and_verifies_them_when_it_applies_them(
    server: ServerInstallation, tmp_path: Path
) -> None:
    file, met = tmp_path / "sighting.yaml", tmp_path / "met"
    words = ("event-type", "create", "sighting", "numberplate:string", "-o", str(file))
    made = run(server.folder, *words)
    run(server.folder, "apply", "-f", str(file))
    key_of(met)
    token = met / "token"
    SecretFile(token).create(server.tokens["nobody"].encode())

    url = f"http://127.0.0.1:{server.port}"
    got = run(met, "event-type", "fetch", url, "--token-file", str(token), "-o", "types.yaml")
    name = made["document"]["name"]
    assert got["types"] == [name]
    run(met, "apply", "-f", "types.yaml")
    found = run(met, "event-type", "inspect", name)
    assert (found["believed"], found["id"]) == (True, made["id"])

    changed = (met / "types.yaml").read_text().replace("numberplate", "Numberplate")
    (met / "types.yaml").write_text(changed)
    refused = run_command(met, "apply", "-f", "types.yaml")
    assert "not signed by" in refused.stderr


def test_who_has_no_token_learns_no_types(server: ServerInstallation, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.port}"
    done = run_command(tmp_path, "event-type", "fetch", url, "-o", "types.yaml")
    assert done.returncode == 1
    assert "--token-file" in done.stderr
    assert not (tmp_path / "types.yaml").exists()
