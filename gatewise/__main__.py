"""The program `gatewise`, and `python -m gatewise`. What it does is in gatewise.lab, which an extra brings."""

import sys
from importlib import import_module


def main() -> int:
    """Run the command line and return its exit code; without the extra, say which is missing."""
    try:
        import_module("gatewise.lab")
    except ImportError as error:
        print(f"Error: {error}.", file=sys.stderr)
        return 1
    from gatewise.lab.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
