"""``python -m scalable_bo`` is the command line, as ``scalable-bo`` is."""

from scalable_bo.cli.main import main

if __name__ == "__main__":
    main()
