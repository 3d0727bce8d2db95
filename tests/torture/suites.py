"""Tests of the suite that attack the project: each case is an attempt."""

import re
import subprocess
import sys

from tests.torture.result import Result

SUITES = {
    "behaviours of a hostile server": ["tests/test_hostile_server.py"],
    "hostile environments and game servers": ["tests/test_openenv.py", "tests/test_gymnasium.py"],
    "hostile tools": ["tests/test_hostile_tools.py"],
    "crafted model files and templates": [
        "tests/test_model_files.py",
        "tests/test_models_gguf.py",
        "tests/test_chat.py",
    ],
}


def torture() -> list[Result]:
    """Run these tests with pytest and count them."""
    return [_run(name, files) for name, files in SUITES.items()]


def _run(name: str, files: list[str]) -> Result:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    counts = re.findall(r"(\d+) (?:passed|failed|error)", done.stdout)
    failures = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    if not counts:
        failures = [done.stdout[-500:] + done.stderr[-500:]]
    return Result(name, sum(map(int, counts)), tuple(failures))
