"""`python -m pollux.testing.world`: see `campaign`."""

from pollux.testing.world.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())
