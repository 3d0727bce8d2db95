"""Menu: memories that carry text from one episode to the next. `base.py` is the contract."""
