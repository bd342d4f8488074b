"""Params of `exec` jobs: accepted values, and the error for each other."""

import pytest

from pollux import Pollux, every
from pollux.errors import InvalidConfig, InvalidInput
from pollux.handlers.exec import FILES, OUTPUT_BYTES, command_of, params_of
from pollux.subprocesses import ProcessLimits


def test_a_command_needs_nothing_but_its_arguments():
    command = command_of({"argv": ["df", "-h"]})
    assert (command.argv, command.cwd, command.env, command.stdin) == (("df", "-h"), None, {}, "")
    assert (command.expect, command.permanent, command.take) == ({0}, frozenset(), "tail")
    assert (command.limits, command.output) == (ProcessLimits(files=FILES), OUTPUT_BYTES)


def test_everything_can_be_said():
    command = command_of(
        {
            "argv": ["a"],
            "cwd": "/srv",
            "env": {"A": "x", "N": 3},
            "stdin": "hello",
            "expect": [0, 1],
            "permanent": 2,
            "take": "json",
            "limits": {"memory": "1 MB", "cpu": "1500ms", "files": 9, "output": "2 kB"},
        }
    )
    assert (command.cwd, command.env, command.stdin) == ("/srv", {"A": "x", "N": "3"}, "hello")
    assert (command.expect, command.permanent, command.take) == ({0, 1}, {2}, "json")
    assert (command.limits, command.output) == (ProcessLimits(memory=1_000_000, cpu=2, files=9), 2_000)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"argv": "df -h"},
            'argv: argv is one text, and there is no shell to take it apart; write a list: ["df", "-h"]',
        ),
        ({}, "argv: argv is no list of texts; write"),
        ({"argv": []}, "argv: argv is no list of texts"),
        ({"argv": ["a", 1]}, "argv: argv is no list of texts"),
        ({"argv": [""]}, "argv: the command has no name"),
        ({"argv": ["a\0b"]}, "argv: it is no text without NUL"),
        ({"argv": ["a"] * 1_001}, "argv: 1001 arguments are too many or too long"),
        ({"argv": ["a" * 100_001]}, "argv: 1 arguments are too many or too long"),
        ({"argv": ["a"], "cwd": 3}, "cwd: it is no text"),
        ({"argv": ["a"], "env": ["A=1"]}, "env: it is no mapping of names; write {LANG: C.UTF-8}"),
        ({"argv": ["a"], "env": {"A-B": "1"}}, "env: 'A-B' is no variable; use letters, digits and _"),
        ({"argv": ["a"], "env": {"A": True}}, "env.A: it is no text"),
        ({"argv": ["a"], "env": {"A": None}}, "env.A: it is no text"),
        ({"argv": ["a"], "expect": "0"}, "expect: these are no exit codes; write numbers from 0 to 255: [0, 1]"),
        ({"argv": ["a"], "expect": [256]}, "expect: these are no exit codes"),
        ({"argv": ["a"], "permanent": [True]}, "permanent: these are no exit codes"),
        ({"argv": ["a"], "take": "jsn"}, """take: 'jsn' is unknown; did you mean "json"?; write one of tail, stdout"""),
        ({"argv": ["a"], "limits": {"memory": "much"}}, "limits.memory: 'much' is not a size"),
        ({"argv": ["a"], "limits": {"cpu": 0}}, "limits.cpu: 0 leaves nothing; give more"),
        ({"argv": ["a"], "limits": {"files": "9"}}, "limits.files: '9' is no number"),
        ({"argv": ["a"], "limits": {"time": 3}}, "limits: unknown key 'time'"),
        ({"argv": ["a"], "timeout": 3}, "unknown key 'timeout'; known are argv, cwd"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_the_cure(params, words):
    with pytest.raises(InvalidInput) as caught:
        command_of(params)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [3, None, True])
def test_a_file_may_not_write_anything_under_exec(value):
    with pytest.raises(InvalidInput, match="neither a list nor a mapping"):
        params_of(value, partial=False)


def test_the_arguments_alone_are_a_command():
    assert params_of(["df"], partial=False) == {"argv": ["df"]}


def test_what_comes_with_the_asking_may_be_missing_before():
    assert params_of({"cwd": "/srv"}, partial=True) == {"cwd": "/srv"}
    with pytest.raises(InvalidInput, match="cwd"):
        params_of({"cwd": 3}, partial=True)


# allowed or not


def test_without_leave_a_command_is_refused_with_the_cure():
    app = Pollux("memory://")
    with pytest.raises(InvalidInput) as caught:
        app.add("exec", every("1m"), id="df", params={"argv": ["df"]})
    told = "commands are not allowed here; write allow_exec: true, or Pollux(allow_exec=True)"
    assert str(caught.value) == told
    assert app._registry.names() == ("http",), "nobody is told that this node runs commands"


def test_with_leave_a_command_is_checked_when_it_is_declared():
    app = Pollux("memory://", allow_exec=True)
    assert app.add("exec", every("1m"), id="df", params={"argv": ["df"]}).handler == "exec"
    with pytest.raises(InvalidInput, match="there is no shell"):
        app.add("exec", every("1m"), id="df2", params={"argv": "df -h"})


async def test_a_put_is_refused_likewise():
    app = Pollux("memory://", allow_exec=True)
    job = app.add("exec", id="df", params={"argv": ["df"]})
    async with Pollux("memory://", runs=False) as strict:
        with pytest.raises(InvalidInput, match="commands are not allowed here"):
            await strict.put_jobs([job])


def test_a_file_is_refused_at_the_place_of_each_job(tmp_path):
    from pollux.config import load_config

    path = tmp_path / "p.yaml"
    path.write_text('store: memory://\njobs:\n  - {id: a, exec: ["df"]}\n  - {id: b, exec: "df -h"}\n')
    with pytest.raises(InvalidConfig) as caught:
        load_config(str(path), environ={})
    [problem] = caught.value.problems
    assert str(problem).endswith(
        "p.yaml:4:19: job 'b': exec.argv: argv is one text, and there is no shell to take it apart; "
        'write a list: ["df", "-h"]'
    )
    path.write_text(path.read_text().replace('"df -h"', '["df"]'))
    with pytest.raises(InvalidConfig) as caught:
        Pollux.from_config(load_config(str(path), environ={}))
    assert [str(problem).split(": ", 1)[0].rsplit("/", 1)[1] for problem in caught.value.problems] == [
        "p.yaml:3:5",
        "p.yaml:4:5",
    ]
    allowed = Pollux.from_config(load_config(str(path), environ={"POLLUX_ALLOW_EXEC": "true"}))
    assert "exec" in allowed._registry.names()
