"""Runs `mptui` as `python -m mptui`."""

from mptui.cli.main import main

if __name__ == "__main__":
    main()
