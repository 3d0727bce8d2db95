"""`python -m mage` is `mage`."""

from mage.cli.main import main

if __name__ == "__main__":  # a training process that is spawned imports this file again
    main()
