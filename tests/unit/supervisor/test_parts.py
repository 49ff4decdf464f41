from pathlib import Path

import pytest

from penstock.config import Config, defaults, load
from penstock.config.loader import check, read_text
from penstock.errors import InvalidError, UnavailableError, UsageError
from penstock.supervisor.parts import BROKER, PARTS, configured_parts, in_order
from penstock.supervisor.supervisor import prepare


def settings(text: str, environ: dict[str, str] | None = None) -> Config:
    return check(read_text(text.encode(), "penstock.yaml"), environ or {}, base=Path("/srv"))


def test_every_part_has_its_name_and_fits_the_others() -> None:
    parts = list(PARTS.values())
    assert [part.name for part in parts] == list(PARTS)
    assert len(in_order(parts)) == len(parts)
    for part in parts:
        assert set(part.after) <= set(PARTS), part.name


def test_parts_that_do_not_exist_are_named_with_their_place() -> None:
    with pytest.raises(InvalidError) as caught:
        configured_parts(settings("parts: [broker, brocker,\n  zzz]"))
    first, second = map(str, caught.value.problems)
    assert first == (
        "penstock.yaml:1:17 (parts.1): there is no part 'brocker' → did you mean 'broker'?"
    )
    assert second.startswith("penstock.yaml:2:3 (parts.2): there is no part 'zzz' → there are: ")


def test_no_parts_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="no part to run"):
        configured_parts(settings("parts: []"))


def test_the_broker_is_not_run_where_it_is_external() -> None:
    config = settings("broker: {mode: external, port: 1883}")
    with pytest.raises(UsageError, match="is the embedded broker"):
        BROKER.choose(config)


def test_the_broker_runs_where_its_socket_is_and_nobody_else_may_enter(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("data: with blanks in it\n")
    config = load(path, {})
    command = BROKER.command(config)
    place = config.data / "broker"
    assert BROKER.folder is not None
    assert BROKER.folder(config) == place
    assert place.stat().st_mode & 0o777 == 0o700
    assert "\nlistener 0 mosquitto.sock\n" in "\n" + Path(command[-1]).read_text()


def test_a_folder_that_others_can_enter_is_no_place_for_the_socket(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    path = tmp_path / "penstock.yaml"
    path.write_text(f"broker: {{socket: {tmp_path}/open/b.sock}}\n")
    with pytest.raises(UnavailableError, match="others can enter the folder"):
        BROKER.command(load(path, {}))


def test_all_parts_get_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("parts: [broker]")
    seen: list[dict[str, str]] = []

    def load_it(environ: object) -> Config:
        assert isinstance(environ, dict)
        seen.append(environ)
        return check(read_text(path.read_bytes(), "penstock.yaml"), environ, base=tmp_path)

    config, _ = prepare(load_it, {"PENSTOCK_LOG__LEVEL": "debug"})
    assert config.data.stat().st_mode & 0o777 == 0o700
    assert seen[-1]["PENSTOCK_LOG__LEVEL"] == "debug"


def test_children_read_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    config, supervisor = prepare(lambda environ: load(tmp_path / "a.yaml", environ), {})
    assert supervisor._environ["PENSTOCK_CONFIG"] == str(tmp_path / "a.yaml")
    assert config.file == tmp_path / "a.yaml"


def test_a_data_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "penstock-data").write_text("a file")
    with pytest.raises(UnavailableError, match="cannot be made: File exists"):
        prepare(lambda environ: defaults(tmp_path, environ), {})


def test_the_pipeline_is_run_where_it_is_named_and_asked_whether_it_is_ready() -> None:
    config = settings("parts: [pipeline]\npipeline: {monitor_port: 4711}")
    (part,) = configured_parts(config)
    assert part.needs == ("java",)
    assert list(part.command(config))[-2:] == ["views", "run"]
    assert part.ready is not None
    assert str(part.ready(config)) == "http://127.0.0.1:4711/readyz"
    for silent in ("pipeline: {monitor_port: 0}", "monitor: {enabled: false}"):
        assert part.ready(settings(silent)) is None


def test_users_and_roles_are_held_where_they_are_named_and_asked_whether_ready() -> None:
    kafka = "bootstrap: 127.0.0.1:9092, password: {env: X}, monitor_port: 4712"
    config = settings(f"parts: [rbac]\nkafka: {{{kafka}}}")
    (part,) = configured_parts(config)
    assert list(part.command(config))[-2:] == ["rbac", "watch"]
    assert part.address is not None
    assert part.address(config) == "127.0.0.1:9092"
    assert part.choose(config) == {}
    assert part.ready is not None
    assert str(part.ready(config)) == "http://127.0.0.1:4712/readyz"
    for silent in ("kafka: {monitor_port: 0}", "monitor: {enabled: false}"):
        assert part.ready(settings(silent)) is None
    with pytest.raises(UsageError, match=r"kafka\.bootstrap is not set"):
        part.choose(settings(""))


def test_the_pipeline_is_not_run_by_itself() -> None:
    assert [part.name for part in configured_parts(settings(""))] == ["broker", "gateway"]


def test_without_probes_the_gateway_is_ready_when_it_listens() -> None:
    part = PARTS["gateway"]
    assert part.ready is not None
    assert str(part.ready(settings(""))) == "http://127.0.0.1:9465/readyz"
    quiet = settings("monitor: {enabled: false}\ngateway: {listeners: {mqtt: {port: 1999}}}")
    assert str(part.ready(quiet)) == "127.0.0.1:1999"
