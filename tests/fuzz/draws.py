"""Source of random cases: Hypothesis gives bytes, and every choice takes some: quick to make, easy to shrink."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CASES = 10_000
PERCENT = int(os.environ.get("POLLUX_FUZZ_PERCENT", "25"))  # of the cases; they are the same ones in every run
SCRAPS = (
    *(
        "\0",
        "\x1b[31m",
        "\u202e",
        "\ud7ff",
        "é",
        "🙂",
        "\u2028",
        "\r\n",
        "\t",
        " ",
        "'",
        '"',
        "\\",
        "%",
        "$",
        "${",
        "${env:",
    ),
    *(
        "*",
        "&a",
        "!x",
        "{",
        "}",
        "[",
        "]",
        ":",
        "- ",
        "#",
        "|",
        ">",
        "~",
        ",",
        "0",
        "-1",
        "1e999",
        "9" * 40,
        "½",
        "٣",
        "x" * 300,
    ),
)

T = TypeVar("T")


class Draws:
    """Choices out of bytes; when they are used up, always the first."""

    def __init__(self, raw: bytes) -> None:
        self._raw = iter(raw)

    def number(self, below: int) -> int:
        size = 1 if below <= 256 else 2
        value = 0
        for _ in range(size):
            value = value * 256 + next(self._raw, 0)
        return value % below

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.number(len(choices))]

    def many(self, make: Callable[[], T], at_most: int) -> list[T]:
        return [make() for _ in range(self.number(at_most + 1))]

    def mutated(self, text: str) -> str:
        """The text with one to four slips of the pen."""
        for _ in range(1 + self.number(4)):
            start = self.number(len(text) + 1)
            end = min(len(text), start + self.number(12))
            match self.number(5):
                case 0:
                    text = text[:start] + text[end:]
                case 1:
                    text = text[:start] + self.one(SCRAPS) + text[start:]
                case 2:
                    text = text[:start] + self.one(SCRAPS) + text[end:]
                case 3:
                    text = text[:end] + text[start:]
                case _:
                    text = text[:start] + text[start:end][::-1] + text[end:]
        return text


def cases(count: int = CASES, size: int = 64, *, at_once: int = 1):
    """Run the test with `draws` so many times, with the same choices every time.

    Where a case is quicker than the making of its bytes, one draw of bytes serves for several cases `at_once`.
    """

    def decorate(test):
        always = settings(
            max_examples=count * PERCENT // (100 * at_once),
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        raw = st.binary(min_size=size * at_once // 4, max_size=size * at_once)
        if at_once == 1:
            return always(given(draws=raw.map(Draws))(test))

        @wraps(test)
        def several(draws, **fixtures):
            for part in range(at_once):
                test(Draws(draws[part::at_once]), **fixtures)

        return always(given(draws=raw)(several))

    return decorate
