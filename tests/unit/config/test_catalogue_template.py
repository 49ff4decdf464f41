from pathlib import Path

from penstock.config import defaults, load
from penstock.config.catalogue import ANY_NAME, WIDTH, Config, settings_of, write_template
from penstock.config.loader import read_text


def test_what_init_writes_are_the_defaults_but_for_what_new_installations_ask(
    tmp_path: Path,
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(write_template())
    written = load(path, environ={})
    filtering = written.gateway.filtering
    assert filtering.claims_need_right
    unasked = filtering.model_copy(update={"claims_need_right": False})
    gateway = written.gateway.model_copy(update={"filtering": unasked})
    as_before = written.model_copy(update={"gateway": gateway})
    assert as_before.model_dump() == defaults(tmp_path, {}).model_dump()


def test_every_setting_is_written_below_its_meaning() -> None:
    text = write_template()
    source = read_text(text.encode(), "penstock.yaml")
    lines = text.splitlines()
    for setting in settings_of(Config):
        named = "rest" if setting.path[0] == "server" else "mqtt"
        path = tuple(named if step == ANY_NAME else step for step in setting.path)
        line = int(source.keys[path].split(":")[1])
        above: list[str] = []
        while lines[line - 2].lstrip().startswith("#"):
            line -= 1
            above.insert(0, lines[line - 1].lstrip("# "))
        assert " ".join(above).startswith(setting.description), setting.name


def test_comments_fit_a_terminal() -> None:
    assert max(map(len, write_template().splitlines())) <= WIDTH
