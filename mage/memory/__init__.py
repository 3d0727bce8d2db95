"""Menu: what an agent carries from one episode to the next. `base.py` is the contract."""
