"""Starts the `proctor` command, or says what it lacks."""

import sys


def main() -> None:
    """Run the command line; an installation without the kernel's extra is told what to install."""
    try:
        from proctor_kernel.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"proctor: {error}; the command comes with pip install 'proctor[kernel]'")
    app()


if __name__ == "__main__":
    main()
