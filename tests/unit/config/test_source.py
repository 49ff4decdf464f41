import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.source import LIMITS, read_file, read_text
from penstock.errors import InvalidError, Problem, UnavailableError


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
