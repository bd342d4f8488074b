"""Fuzz test of config files: the result is a Config, or InvalidConfig with a location and a cure."""

import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pollux.config import Config, load_config
from pollux.config.jobs import JOB_KEYS
from pollux.config.settings import FILE_KEYS
from pollux.errors import InvalidConfig

WORDS = st.sampled_from(
    ["a", "b", "30s", "1h", "m:f", "* * * * *", "UTC", "Europe/Berlin", "true", "false", "null", "~", "0", "1", "-1",
     "1.5", "high", "skip", "2030-01-01T00:00:00Z", "''", "[]", "{}", "&x", "*x", "!t", "x y", "é", "9" * 30, "1e400"]
)  # fmt: skip
KEYS = st.sampled_from([*JOB_KEYS, *FILE_KEYS, "seats", "ttl", "keep", "<<", "intervall"])


def flow(children):
    lists = st.lists(children, max_size=4).map(lambda items: f"[{', '.join(items)}]")
    pairs = st.lists(st.tuples(KEYS, children).map(lambda pair: f"{pair[0]}: {pair[1]}"), max_size=6)
    return lists | pairs.map(lambda items: f"{{{', '.join(items)}}}")


VALUES = st.recursive(WORDS, flow, max_leaves=20)
JOBS = st.lists(
    st.lists(st.tuples(st.sampled_from(JOB_KEYS), VALUES), max_size=6).map(
        lambda pairs: (
            "{" + ", ".join(f"{key}: {value}" for key, value in [("id", "a"), ("python", "'m:f'"), *pairs]) + "}"
        )
    ),
    max_size=4,
).map(lambda jobs: f"jobs: [{', '.join(jobs)}]\n")
DOCUMENTS = st.lists(st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]}: {pair[1]}\n"), max_size=5).map("".join)
YAMLISH = st.text(alphabet=string.ascii_letters + string.digits + " \n\t:-[]{},'\"&*!?|>#%@`~.é\0", max_size=200)


def load(raw: bytes, path) -> None:
    path.write_bytes(raw)
    try:
        answer = load_config(str(path), environ={})
    except InvalidConfig as error:
        answer = error.problems
    if isinstance(answer, Config):
        return
    assert answer
    for problem in answer:
        assert problem.where.startswith(str(path))
        assert problem.cure


def fuzz(strategy):
    def decorate(test):
        unchecked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
        quiet = settings(max_examples=300, suppress_health_check=unchecked)
        return quiet(given(raw=strategy)(test))

    return decorate


@fuzz(YAMLISH)
def test_any_text_is_a_config_or_a_complaint(raw, tmp_path):
    load(raw.encode(), tmp_path / "f.yaml")


@fuzz(st.binary(max_size=200))
def test_any_bytes_are_a_config_or_a_complaint(raw, tmp_path):
    load(raw, tmp_path / "f.yaml")


@fuzz(DOCUMENTS)
def test_any_keys_and_values_are_a_config_or_a_complaint(raw, tmp_path):
    load(raw.encode(), tmp_path / "f.yaml")


@fuzz(JOBS)
def test_any_job_is_a_config_or_a_complaint(raw, tmp_path):
    load(raw.encode(), tmp_path / "f.yaml")
