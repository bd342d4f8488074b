"""YAML reader: values keep their types, and each error has a location."""

import pytest

from pollux.config.yaml_reader import PROBLEMS_MAX, Problems, read_yaml, resolve


def read(text: str):
    """The plain document and the problems as text."""
    problems = Problems("f")
    root = read_yaml(text, problems)
    return None if root is None else root.plain(), [str(problem) for problem in problems.all()]


def complaint(text: str) -> str:
    _, [problem] = read(text)
    return problem


@pytest.mark.parametrize(
    "text",
    ["on", "off", "yes", "no", "y", "12:30", "1:2:3", "2026-12-01", "2026-12-01T06:00:00Z", "0123", "1_000", "0x1f",
     "0o17", ".inf", ".nan", "1e999", "9" * 5_000, "-", "+", ".", "1.2.3", "<<", "=", "\uff19"],
)  # fmt: skip
def test_what_is_not_plainly_a_number_or_a_constant_stays_text(text):
    assert read(f"a: {text}" if text != "-" else "a: '-'") == ({"a": text}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-5", -5), ("+5", 5), ("0", 0), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("true", True),
     ("False", False), ("~", None), ("null", None), ("9223372036854775807", 2**63 - 1)],
)  # fmt: skip
def test_numbers_and_constants_are_what_they_look_like(text, value):
    [(key, read_value)] = read(f"a: {text}")[0].items()
    assert (key, read_value, type(read_value)) == ("a", value, type(value))


@pytest.mark.parametrize("text", ["'5'", '"true"', "|\n  5", ">-\n  5"])
def test_what_stands_in_quotes_or_blocks_is_text(text):
    document, problems = read(f"a: {text}")
    assert isinstance(document["a"], str)
    assert not problems


def test_a_number_too_big_for_json_stays_text():
    assert resolve("9223372036854775808") == "9223372036854775808"


def test_keys_are_text():
    assert read("{1: a, true: b, null: c, on: d}") == ({"1": "a", "true": "b", "null": "c", "on": "d"}, [])


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "~", "--- null\n..."])
def test_nothing_is_a_document_without_problems(text):
    assert read(text) == (None, [])


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: &x 1", "f:1:4", "anchors (&x) are not used here"),
        ("a: 1\nb: *x", "f:2:4", "aliases (*x) are not used here"),
        ("a: !!str 5", "f:1:4", "tags (tag:yaml.org,2002:str) are not used here"),
        ("a: !python/object:os.system x", "f:1:4", "tags"),
        ("a: 1\nb: 2\na: 3", "f:3:1", "the key 'a' is there already, in line 1"),
        ("a: 1\n--- \nb: 2", "f:2:1", "a second document"),
        ("a: 1\n? [x]\n: 2", "f:2:3", "where a key belongs"),
        ("a: {{ host }}", "f:1:5", "where a key belongs"),
        ("a: [1, 2", "f:2:1", "no YAML"),
        ("a:\n\tb: 1", "f:2:1", "no YAML"),
        ("a: b: c", "f:1:5", "no YAML"),
        ("cron: */5 * * * *", "f:1:8", 'in quotes: cron: "*/5 * * * *"'),
        ("cron: * * * * *", "f:1:8", 'in quotes: cron: "*/5 * * * *"'),
        ("a: 'x", "f:1:6", "no YAML"),
        ("ab: \x07", "f:1:5", "a character that no text holds"),
        ("x: 1\nab: \x00", "f:2:5", "a character that no text holds"),
        ("[" * 33 + "]" * 33, "f:1:33", "more than 32 levels"),
    ],
)
def test_what_is_refused_says_where_and_what_to_do(text, where, what):
    problem = complaint(text)
    assert problem.startswith(f"{where}: ")
    assert what in problem
    assert "; " in problem


def test_thirty_two_levels_are_fine():
    assert read("[" * 32 + "]" * 32)[1] == []


@pytest.mark.parametrize("bomb", ["[", "{a: ", "- ", "? ", "{? "])
def test_a_depth_bomb_is_refused_at_once(bomb):
    assert len(read(bomb * 100_000)[1]) == 1


def test_an_alias_bomb_costs_nothing():
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert all("not used here" in problem or "more" in problem for problem in read(bomb)[1])


def test_all_problems_come_in_the_order_of_the_file():
    _, problems = read("a: &x 1\nb: *x\nc: !t 1\na: 2\n")
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "3", "4"]


def test_endless_problems_are_counted_not_listed():
    _, problems = read("".join(f"k{n}: &a{n} 1\n" for n in range(PROBLEMS_MAX + 7)))
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "f: and 7 more; correct these first"
