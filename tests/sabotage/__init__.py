"""Would anybody notice?  Break each promise on purpose, one at a time, and see which test goes red.

    make sabotage                      all of them
    python -m tests.sabotage S1 S9     some of them
    python -m tests.sabotage --list    what there is

A sabotage is an exact change of the source.  It is applied to a copy, never to the source itself, and a few chosen
tests are run there.  A sabotage that no test notices has escaped: a test is missing.  One that no longer fits its
source says so; `test_fits.py` finds that out in every ordinary test run.
"""
