import json
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.config import Config, KeyFile, SecretFile, SecretVariable, defaults, find, load
from penstock.config.catalogue import settings_of, show
from penstock.config.loader import LIMITS, check, read_file, read_text
from penstock.errors import InvalidError, Problem, UnavailableError, UsageError


def refusal(text: str | bytes) -> str:
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(InvalidError) as caught:
        read_text(content, "a.yaml")
    (problem,) = caught.value.problems
    return str(problem)


def test_each_value_and_key_has_its_place() -> None:
    source = read_text(b"one: 1\ntwo:\n  three: [x, yy]\n", "a.yaml")
    assert source.data == {"one": 1, "two": {"three": ["x", "yy"]}}
    assert source.place(("two", "three", 1)) == "a.yaml:3:14 (two.three.1)"
    assert source.place(("two", "three"), key=True) == "a.yaml:3:3 (two.three)"


def test_the_place_of_what_is_absent_is_the_group_around_it() -> None:
    source = read_text(b"one: 1\ntwo: {}\n", "a.yaml")
    assert source.place(("two", "three")) == "a.yaml:2:1 (two.three)"
    assert source.place(("four",)) == "a.yaml:1:1 (four)"
    assert source.place(()) == "a.yaml:1:1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("22:30", "22:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0x1f", "0x1f"),
        ('"12"', "12"),
        ("9" * 30, "9" * 30),
    ],
)
def test_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = read_text(f"k: {text}".encode(), "a.yaml").data["k"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"---\n", b"\xef\xbb\xbf# bom\n"])
def test_an_empty_file_is_no_settings(content: bytes) -> None:
    assert read_text(content, "a.yaml").data == {}


def test_problems_that_allow_reading_on_are_collected() -> None:
    source = read_text(
        b"a: 1\nb: !!python/object:os.system x\na: 2\n? [x]\n: 3\nc: !!int word\n", "a.yaml"
    )
    shown = [str(problem) for problem in source.problems.values()]
    assert len(shown) == 4
    assert shown[0].startswith(
        "a.yaml:2:4 (b): the tag 'tag:yaml.org,2002:python/object:os.system'"
    )
    assert shown[1].startswith("a.yaml:3:1 (a): the key 'a' stands here a second time, first at a.")
    assert "a key must be a word" in shown[2]
    assert "'word' is not what it claims to be" in shown[3]
    assert source.data["a"] == 1


def test_syntax_errors_have_a_place() -> None:
    assert refusal("a: [1\nb: 2").startswith("a.yaml:2:2: this is not YAML")
    assert refusal("a: *nowhere").startswith("a.yaml:1:4: this is not YAML")
    assert refusal("a: 1\n---\nb: 2").startswith("a.yaml:3:1: a second document begins here")
    assert "this is not YAML" in refusal("a: \x01")


def test_a_file_that_is_no_mapping_is_refused() -> None:
    assert refusal("- a").startswith("a.yaml:1:1: the file must hold")


def test_other_encodings_are_refused_with_their_line() -> None:
    assert refusal(b"a: 1\nb: \xff\n").startswith("a.yaml:2:1: the text is not UTF-8")


def test_size_is_limited() -> None:
    read_text(b"#" * LIMITS.size, "a.yaml")
    assert "over" in refusal(b"#" * (LIMITS.size + 1))


def test_depth_is_limited_whatever_the_file_holds() -> None:
    depth = LIMITS.depth
    read_text(("a: " + "[" * (depth - 1) + "]" * (depth - 1)).encode(), "a.yaml")
    assert "levels" in refusal("a: " + "[" * depth + "]" * depth)
    assert "levels" in refusal("a: " + "[" * (LIMITS.size - 10))


def test_aliases_are_expanded_within_limits() -> None:
    assert read_text(b"a: &x [1, 2]\nb: *x", "a.yaml").data["b"] == [1, 2]
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [
        f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, LIMITS.depth - 2)
    ]
    assert "aliases expanded" in refusal("\n".join(bomb))
    assert "levels" in refusal("a: &x [*x]")


def test_a_missing_file_names_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        read_file(tmp_path / "none.yaml")
    assert "penstock init" in str(caught.value)


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00\ud800"', r'"a\0b"'])
def test_text_that_no_file_can_hold_is_refused(text: str) -> None:
    source = read_text(f"a: {text}\n{text}: 1\n".encode(), "a.yaml")
    assert len(source.problems) == 2


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(words, plain, max_size=5))
def test_what_json_says_is_read_back(data: dict[str, object]) -> None:
    # A quoted scalar is always text, so the writer's choice of quotes must not matter.
    assert read_text(json.dumps(data).encode(), "a.yaml").data == data


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


@given(st.text(alphabet="ab:-[]{}&*!?|>'\"#,% \n\t01~", max_size=60))
def test_any_text_is_read_as_the_library_does_or_refused_with_a_place(text: str) -> None:
    problems: list[Problem] = []
    try:
        source = read_text(text.encode(), "a.yaml")
        problems += source.problems.values()
    except InvalidError as error:
        problems += error.problems
    assert all(problem.place.startswith("a.yaml") for problem in problems)
    if not problems and source.data:
        assert shape(source.data) == shape(yaml.load(text, yaml.BaseLoader))  # noqa: S506


def read(text: str, environ: dict[str, str] | None = None) -> Config:
    return check(
        read_text(dedent(text).encode(), "penstock.yaml"), environ or {}, base=Path("/srv")
    )


def problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        read(text, environ)
    return [str(problem) for problem in caught.value.problems]


def test_settings_are_frozen() -> None:
    config = read("")
    with pytest.raises(ValidationError):
        config.data = Path("/elsewhere")
    with pytest.raises(ValidationError):
        config.store.url = "sqlite:///x"


def test_relative_paths_start_at_the_data_folder_and_it_at_the_file() -> None:
    config = read("data: here\nbroker: {tls: {ca: ca.pem}}\naudit: {signing_key: /abs/key}")
    assert config.data == Path("/srv/here")
    assert config.broker.tls.ca == Path("/srv/here/ca.pem")
    assert config.store.url == "sqlite:////srv/here/penstock.db"
    assert config.audit.signing_key == KeyFile(Path("/abs/key"))
    assert config.audit.pseudonym_key == KeyFile(Path("/srv/here/keys/pseudonym.key"))


def test_a_group_whose_lines_are_all_commented_out_keeps_its_defaults() -> None:
    commented = read("store:\ngateway:\n  limits:\n")
    assert commented.model_dump() == read("").model_dump()


def test_all_problems_are_listed_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        """\
        store:
          ur: sqlite:///x.db
          lease: soon
        url: sqlite:///x.db
        gateway:
          listeners:
            Big: {}
            ws: {transport: pigeon, port: 70000}
          open_mode: no way
        log: loud
        parts: broker
        parts: [broker]
        """,
        {"PENSTOCK_GATEWAY__LIMITS__PACKET": "huge"},
    )
    assert [line.split(": ")[0] for line in found] == [
        "penstock.yaml:2:3 (store.ur)",
        "penstock.yaml:3:10 (store.lease)",
        "penstock.yaml:4:1 (url)",
        "penstock.yaml:7:5 (gateway.listeners.Big)",
        "penstock.yaml:8:21 (gateway.listeners.ws.transport)",
        "penstock.yaml:8:35 (gateway.listeners.ws.port)",
        "penstock.yaml:9:14 (gateway.open_mode)",
        "penstock.yaml:10:6 (log)",
        "penstock.yaml:12:1 (parts)",
        "environment variable PENSTOCK_GATEWAY__LIMITS__PACKET (gateway.limits.packet)",
    ]
    assert all(" → " in line for line in found)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("stor: {}", "did you mean 'store'?"),
        ("store: {urls: x}", "did you mean 'url'?"),
        ("signing_key: x", "did you mean audit.signing_key?"),
        ("log: {zzz: 1}", "remove it; known here: level, format"),
        ("log: {level: loud}", "write one of debug, info, warning, error"),
        ("log: {level: [debug]}", "not a group or a list → write one of debug"),
        ("log: [debug]", "write `key: value` lines below it: level, format"),
        ("parts: broker", "write [ONE, TWO]"),
        ("parts: [broker, broker]", "the part 'broker' is named twice → keep one"),
        ("monitor: {port: 65536}", "'65536' does not fit → write a port"),
        ("monitor: {host: 'a b'}", "'a b' does not fit → write a host (a name or an address"),
        ("monitor: {host: null}", "a value is missing → write a host"),
        ("audit: {batch: 0}", "'0' does not fit → write a number (1 to 100000)"),
        ("supervisor: {grace: 2h}", "'2h' does not fit → write a duration (0 to 1h)"),
        ("gateway: {listeners: {}}", "write {a name: a group of settings}"),
    ],
)
def test_each_problem_names_its_fix(text: str, fix: str) -> None:
    (found,) = problems(text)
    assert fix in found


@pytest.mark.parametrize(
    "text",
    [
        "broker: {password: hunter2}",
        "broker: {password: [hunter2]}",
        "broker: {password: {file: x, value: hunter2}}",
        "broker: {password: {value: hunter2}}",
        "broker: {pasword: hunter2}",
        "broker: {password: !!int hunter2}",
        'broker: {password: "hunter2\\0"}',
        'store: {url: "postgresql://me:hunter2@host/db\\ud800"}',
        "store: {password: {env: X}, password: hunter2}",
        "broker: hunter2",
        "store: postgresql://me:hunter2@host/db",
        "store: {url: 'postgresql://me:hunter2@host/db'}",
        "store: {url: 'postgresql://me@host/db?password=hunter2'}",
        "store: {url: 'mysql://me:hunter2@host/db'}",
        "store: {url: 'postgresql://me:hunter2@[host/db'}",
        'audit: {signing_key: "-----BEGIN PRIVATE KEY-----\\nhunter2"}',
        "audit: {signing_key: [hunter2]}",
        'broker: {password: {file: "-----BEGIN PRIVATE KEY-----\\nhunter2"}}',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(text: str) -> None:
    (found,) = problems(text)
    assert "hunter2" not in found
    assert "penstock.yaml:1:" in found
    assert " → " in found


def test_what_the_reader_cannot_read_is_listed_with_the_rest() -> None:
    found = problems("log: {level: !!int x}\n? [a]\n: 1\nlog: {}\ndata: [1]\n")
    assert [line.split(",")[0] for line in found] == [
        "penstock.yaml:1:14 (log.level): the value has a tag",
        "penstock.yaml:2:3 (?): a key must be a word → write a plain value",
        "penstock.yaml:4:1 (log): the key 'log' stands here a second time",
        "penstock.yaml:5:7 (data): a plain value is expected",
    ]


def test_secrets_are_places() -> None:
    config = read(
        """\
        store: {url: "postgresql://me@host/db", password: {file: keys/store}}
        broker: {mode: external, port: 1883, username: me, password: {env: BROKER_PASSWORD}}
        """
    )
    assert config.store.password == SecretFile(Path("/srv/penstock-data/keys/store"))
    assert config.broker.password == SecretVariable("BROKER_PASSWORD")
    assert dict(config.secrets()) == {
        ("store", "password"): config.store.password,
        ("broker", "password"): config.broker.password,
        ("audit", "signing_key"): config.audit.signing_key,
        ("audit", "pseudonym_key"): config.audit.pseudonym_key,
        ("consent", "key"): config.consent.key,
        ("broker", "key"): config.broker.key,
        ("kafka", "key"): config.kafka.key,
        ("pipeline", "key"): config.pipeline.key,
        ("trust", "key"): config.trust.key,
    }


def test_a_secret_from_the_environment_stays_there() -> None:
    config = read(
        "broker: {mode: external, port: 1883, username: me, password: {file: x}}",
        {"PENSTOCK_BROKER__PASSWORD": "hunter2"},
    )
    assert config.broker.password == SecretVariable("PENSTOCK_BROKER__PASSWORD")
    assert "hunter2" not in repr(config)
    assert "hunter2" not in config.model_dump_json()


def test_the_environment_goes_before_the_file() -> None:
    config = read(
        "log: {level: debug}\ngateway: {listeners: {mqtt: {port: 1}}}\nmonitor:\n",
        {
            "PENSTOCK_DATA": "/var/lib/penstock",
            "PENSTOCK_PARTS": "broker, gateway",
            "PENSTOCK_LOG__LEVEL": "error",
            "PENSTOCK_MONITOR__ENABLED": "false",
            "PENSTOCK_GATEWAY__LISTENERS__MQTT__PORT": "2",
            "PENSTOCK_GATEWAY__LISTENERS__WS__TRANSPORT": "websocket",
            "PENSTOCK_STORE__PASSWORD__FILE": "keys/store",
        },
    )
    assert config.data == Path("/var/lib/penstock")
    assert config.parts == ("broker", "gateway")
    assert config.log.level == "error"
    assert config.monitor.enabled is False
    assert config.gateway.listeners["mqtt"].port == 2
    assert config.gateway.listeners["ws"].transport == "websocket"
    assert config.store.password == SecretFile(Path("/var/lib/penstock/keys/store"))


@pytest.mark.parametrize("quote", ["", '"'])
def test_lists_and_groups_in_the_environment_are_written_as_in_the_file(quote: str) -> None:
    config = read(
        "",
        {
            "PENSTOCK_PARTS": "['gateway']".replace("'", quote),
            "PENSTOCK_GATEWAY__LISTENERS": "{'a': {'port': 7}}".replace("'", quote),
        },
    )
    assert config.parts == ("gateway",)
    assert config.gateway.listeners["a"].port == 7


@pytest.mark.parametrize("text", ["{a: ", "[!!python/name:os x]", "[]\n---\n[]", "\udcff["])
def test_a_list_in_the_environment_that_cannot_be_read_is_a_problem(text: str) -> None:
    (found,) = problems("", {"PENSTOCK_GATEWAY__LISTENERS": text})
    assert found.startswith("environment variable PENSTOCK_GATEWAY__LISTENERS (gateway.listeners)")


def test_every_setting_can_be_set_by_its_variable() -> None:
    environ = {
        setting.variable.replace("NAME", "REST" if "SERVER" in setting.variable else "MQTT"): show(
            setting.default
        )
        for setting in settings_of(Config)
        if setting.default not in (None, ())
    }
    assert len(environ) > 40
    assert read("", environ).model_dump() == read("").model_dump()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PENSTOCK_STORE_URL", "did you mean PENSTOCK_STORE__URL?"),
        ("PENSTOCK_STORE__URLS", "did you mean 'url'?"),
        ("PENSTOCK_LOG__LEVEL__X", "there is no setting 'x' in 'log.level'"),
        ("PENSTOCK_NOWHERE__X", "there is no setting 'x' in 'nowhere'"),
        ("PENSTOCK_PART", "did you mean PENSTOCK_PARTS?"),
        ("PENSTOCK___", "there is no setting"),
    ],
)
def test_a_variable_that_was_meant_as_a_setting_is_not_ignored(variable: str, text: str) -> None:
    (found,) = problems("", {variable: "x"})
    assert found.startswith(f"environment variable {variable}")
    assert text in found


@pytest.mark.parametrize(
    "variable",
    ["PENSTOCK_CONFIG", "PENSTOCK_ACTOR", "PENSTOCK_DEBUG", "PENSTOCK_JARS", "PENSTOCK_"],
)
def test_variables_of_others_are_left_alone(variable: str) -> None:
    assert read("", {variable: "x"}).model_dump() == read("").model_dump()


def test_a_variable_below_a_plain_value_is_a_problem_of_both() -> None:
    found = problems("log: loud", {"PENSTOCK_LOG__LEVEL": "info"})
    assert len(found) == 2
    assert found[1].endswith("fix penstock.yaml:1:1 (log)")


def test_the_file_is_the_named_one_else_the_variables_else_the_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(environ={}) is None
    with pytest.raises(UsageError, match="penstock init"):
        load(environ={})
    for name in ("penstock.yaml", "other.yaml", "third.yaml"):
        (tmp_path / name).write_text(f"data: {name[0]}")
    environ = {"PENSTOCK_CONFIG": "other.yaml"}
    assert load(environ={}).data == tmp_path / "p"
    assert load(environ=environ).data == tmp_path / "o"
    assert load(Path("third.yaml"), environ=environ).data == tmp_path / "t"
    assert load(environ={}).file == tmp_path / "penstock.yaml"


def test_without_a_file_the_defaults_hold_and_the_environment_counts(tmp_path: Path) -> None:
    config = defaults(tmp_path, {"PENSTOCK_LOG__LEVEL": "debug"})
    assert config.file is None
    assert config.data == tmp_path / "penstock-data"
    assert config.log.level == "debug"


def test_settings_know_where_they_were_written() -> None:
    config = read("parts: [one,\n  two]", {"PENSTOCK_LOG__LEVEL": "debug"})
    assert config.place("parts", 1) == "penstock.yaml:2:3 (parts.1)"
    assert config.place("log", "level") == "environment variable PENSTOCK_LOG__LEVEL (log.level)"
