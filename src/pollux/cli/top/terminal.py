"""How is the terminal given back?  As it was found, also if we were stopped without a word in between."""

from __future__ import annotations

import os

from textual.drivers.linux_driver import LinuxDriver


class OwnTerminal(LinuxDriver):
    """Ctrl-Z is told to us before: we leave the screen, and come back.  A SIGSTOP is not: the screen is still ours."""

    def _sigcont_application(self, *_: object) -> None:
        if self._auto_restart and not self._must_signal_resume and self._is_in_front():
            # Else the start would take a raw terminal for what it found, and leave it so in the end.
            self.suspend_application_mode()
            self._must_signal_resume = True
        super()._sigcont_application()

    def _is_in_front(self) -> bool:
        """May we touch the terminal?  In the background we would be stopped again."""
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:  # it is not the terminal of our session: nobody moves us to the background
            return True
