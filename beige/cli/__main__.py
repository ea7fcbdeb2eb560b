"""`python -m beige.cli`: the same as the command `beige`."""

from beige.cli import main

if __name__ == "__main__":
    main()
