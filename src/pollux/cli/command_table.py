"""Table of the commands and their exit codes, as plain text, so that `pollux --help` imports nothing."""

from __future__ import annotations

from typing import NamedTuple

OK = 0
FAILED = 1  # the request failed, or its subject does not exist
USAGE = 2  # bad usage or bad config
UNAVAILABLE = 3  # the store or the node is not available
INTERRUPTED = 130


class CommandEntry(NamedTuple):
    name: str
    home: str  # module:attribute
    purpose: str


SECTIONS: tuple[tuple[str, tuple[CommandEntry, ...]], ...] = (
    (
        "Run it",
        (
            CommandEntry(
                "serve", "pollux.cli.serve:serve", "plan and run the jobs of a file or an app; watch them live"
            ),
            CommandEntry("worker", "pollux.cli.serve:worker", "run only: another worker on the same store"),
            CommandEntry(
                "check",
                "pollux.cli.check:check",
                "look for mistakes in a config or an app; --diff shows what a start would change",
            ),
            CommandEntry(
                "simulate", "pollux.cli.simulate:simulate", "a day of it in virtual time: lateness, skips, seats"
            ),
            CommandEntry("plan", "pollux.cli.plan:plan", "what fires in the next hours, and how many at once"),
            CommandEntry(
                "doctor", "pollux.cli.doctor.command:doctor", "checks of machine, config and store, with cures"
            ),
            CommandEntry(
                "config", "pollux.cli.config:config", "every option, its value and where it came from; --example"
            ),
        ),
    ),
    (
        "Look",
        (
            CommandEntry("top", "pollux.cli.top:top", "all of it live, full screen: sort, filter, pause, run now"),
            CommandEntry("jobs", "pollux.cli.jobs:jobs", "list, show with history, run, cancel, delete, move"),
            CommandEntry("runs", "pollux.cli.runs:runs", "list, show and follow, cancel"),
            CommandEntry("dead", "pollux.cli.dead:dead", "dead letters: list, show, revive, drop"),
            CommandEntry(
                "health", "pollux.cli.status:health", "health of the deployment, with cures; also as exit code"
            ),
            CommandEntry("why", "pollux.cli.status:why", "why a job or run does not run, and what to do"),
            CommandEntry("nodes", "pollux.cli.status:nodes", "the processes on a store, and which of them leads"),
            CommandEntry("compare", "pollux.cli.versions:compare", "two versions of a deployment, side by side"),
            CommandEntry("audit", "pollux.cli.status:audit", "who changed what; verify that the log is whole"),
        ),
    ),
    (
        "Change",
        (
            CommandEntry(
                "enqueue", "pollux.cli.enqueue:enqueue", "ask for a run of a job, now or later; --wait for its end"
            ),
            CommandEntry("pause", "pollux.cli.pause:pause", "stop jobs, a group, a target or everything for a while"),
            CommandEntry("resume", "pollux.cli.pause:resume", "end a pause or a drain; alone: list what is stopped"),
            CommandEntry("drain", "pollux.cli.pause:drain", "let the workers claim nothing; --wait until nothing runs"),
            CommandEntry("trigger", "pollux.cli.pause:trigger", "let the leader plan now, and print what came of it"),
            CommandEntry(
                "reload", "pollux.cli.reload:reload", "read the config again; --dry-run, --rollback, --versions"
            ),
            CommandEntry("set", "pollux.cli.config:set_option", "change an option of all nodes while they run"),
            CommandEntry(
                "migrate", "pollux.cli.versions:migrate", "versions on one store; finish one whose jobs were moved"
            ),
            CommandEntry("token", "pollux.cli.token:token", "tokens of the API: create, list, revoke, rotate; --curl"),
            CommandEntry(
                "completion", "pollux.cli.completion:completion", "let bash, zsh or fish complete commands and ids"
            ),
            CommandEntry(
                "store", "pollux.cli.store:store", "check, backup, restore, move; dump everything, load it elsewhere"
            ),
        ),
    ),
)
ENTRIES = {entry.name: entry for _, entries in SECTIONS for entry in entries}
MEANT = {"status": "health"}  # what others call it


def menu_text() -> str:
    lines = [
        "Usage: pollux COMMAND [OPTIONS]",
        "",
        "Pollux decides when each of many things should be checked or run, runs it, and neither",
        "loses nor doubles a firing.",
    ]
    for title, entries in SECTIONS:
        lines += ["", f"{title}:", *(f"  {entry.name:<10} {entry.purpose}" for entry in entries)]
    lines += [
        "",
        "First steps:",
        "  pollux serve -c pollux.yaml          run the jobs of a file; Ctrl-C stops",
        "  pollux jobs                          in a second terminal: what is there, what is due",
        "  pollux jobs run home                 run one now",
        "  pollux why home                      why it does not run",
        "",
        "Everywhere, before the command or after it:",
        "  --store URL       sqlite:///pollux.db or any other store; also POLLUX_STORE",
        "  -c, --config FILE where the store is named; also POLLUX_CONFIG, else ./pollux.yaml if there is one",
        "  --app MODULE:ATTR a Pollux in your own code, and its store; also POLLUX_APP",
        "  --url URL         ask a node at http://host:8060 instead of the store; also POLLUX_URL",
        "  --token TOKEN     the token for it; better in POLLUX_TOKEN",
        "  --json            one JSON document instead of a table",
        "  --help            more about a command, with examples; --version",
        "",
        "Exit codes: 0 ok, 1 the thing asked for failed or is not there, 2 bad usage or config,",
        "            3 the store or the node is not available, 130 interrupted",
    ]
    return "\n".join(lines) + "\n"
