"""Sabotage: each promise is broken on purpose, one at a time, to see which test goes red.

    make sabotage                           all of them, and the table of the behaviours
    python -m tests.sabotage S1 S9          some of them
    python -m tests.sabotage --list         what there is
    python -m tests.sabotage table          the table alone
    python -m tests.sabotage --behaviours   fill the table: a mutant for each behaviour that has none

A sabotage is an exact change of the source.  It is applied to a copy, never to the source itself, and a few chosen
tests are run there.  A sabotage that no test notices has escaped: a test is missing.  One that no longer fits its
source says so; `test_fits.py` finds that out in every ordinary test run.

The table (`behaviours.txt`) asks the other way round: each behaviour of the stores' conformance suite names a small
change of the memory store under which it goes red.  A behaviour that nothing turns red could not fail.
"""
