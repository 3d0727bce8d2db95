"""Menu of environments. `base.py` is the contract; a file or folder is a value of the option."""
