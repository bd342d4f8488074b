"""Plugin that fails a session with a skipped test: a skip is a test that cannot fail.

`make test` sets `POLLUX_NO_SKIP=1`, which puts this plugin in.  Bare pytest may skip a missing service, and prints it.
"""

import pytest


class NoSkip:
    """Remember each skip and, at the end, name them and turn the exit status."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}  # by test; a skipped module is reported once per process of xdist

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """An expected failure was run and is no skip, unless it was declared with `run=False`."""
        xfail = getattr(report, "wasxfail", None)
        if report.skipped and (xfail is None or "[NOTRUN]" in xfail):
            reason = xfail if xfail is not None else _reason(report.longrepr)
            self.reasons.setdefault(report.nodeid or "collection", reason)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.reasons and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.reasons:
            return
        terminalreporter.section("skipped tests fail this run", red=True, bold=True)
        for nodeid, reason in sorted(self.reasons.items()):
            terminalreporter.line(f"{nodeid}: {reason}")
        terminalreporter.line("bring what they need, or run bare pytest, which may skip (POLLUX_NO_SKIP unset)")


def _reason(longrepr: object) -> str:
    """A skip is reported as (path, line, "Skipped: why")."""
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
