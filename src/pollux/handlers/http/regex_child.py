"""Child process of `extract.py`: runs one regex search after another; the alarm ends it if one takes too long.

It is run as a file by a Python without site-packages, so it imports nothing of ours.  The alarm is the kernel's and
counts the CPU time of the search: its default action ends the process even inside a search, and also when the parent
is gone.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import warnings


def main() -> None:
    budget = float(sys.argv[1])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us by closing the pipe
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    while head := source.read(4):
        pattern, text = json.loads(source.read(int.from_bytes(head, "big")))
        signal.setitimer(signal.ITIMER_VIRTUAL, budget)
        found = re.search(pattern, text)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        value = None if found is None else found[1] if found.re.groups else found[0]
        answer = json.dumps(value).encode()
        sink.write(len(answer).to_bytes(4, "big") + answer)
        sink.flush()


if __name__ == "__main__":
    main()
