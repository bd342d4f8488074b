"""Entry point of `python -m pollux`."""

from pollux.cli import main

if __name__ == "__main__":
    main()
