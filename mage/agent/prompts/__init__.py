"""The frame around an environment's own words: text files with {places}, read once."""

from functools import cache
from importlib.resources import files


@cache
def template(name: str) -> str:
    """The text of one prompt file, without its last line break."""
    return files(__name__).joinpath(f"{name}.txt").read_text().rstrip("\n")
