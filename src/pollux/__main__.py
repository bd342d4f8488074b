"""`python -m pollux` is `pollux`."""

from pollux.cli import main

if __name__ == "__main__":
    main()
