"""Wrong input of a training: one message, exit code 2, and no run folder."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mage.cli.main import app, is_user_error
from mage.config.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["alfworld", "--environments.data={folder}"], ["holds no ALFWorld games", "docs/worlds"]),
        (
            ["paper_webshop", "--environments.data={folder}"],
            ["one file items_shuffle*.json", "docs/w"],
        ),
        (["alfworld", "--environments.data={folder}/gone"], ["{folder}/gone"]),
        (
            ["paper_webshop", "--environments.data={folder}/gone"],
            ["there is no folder {folder}/gone"],
        ),
        (["demo", "--agent.window=0"], ["agent.window = 0: must be greater than or equal to 1"]),
        (
            ["kuhn_demo", "--engines.context=20"],
            ["engines.context = 20 is smaller than one prompt"],
        ),
        (["demoo"], ["there is no recipe 'demoo' (did you mean 'demo'?)"]),
        (["demo+mag"], ["there is no part 'mag' (did you mean 'mage'?)"]),
        (["demo+react+"], ["there is no part ''"]),
    ],
)
def test_wrong_input_ends_with_one_message(
    tmp_path: Path, words: list[str], messages: list[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    given = [word.format(folder=folder) for word in words]
    done = CliRunner().invoke(app, ["train", *given, "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 2
    assert done.stderr.startswith("mage: ")
    assert done.stderr.count("\n") == 1
    for message in messages:
        assert message.format(folder=folder) in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_mistake_is_no_bug() -> None:
    assert is_user_error(ConfigError("wrong"))
    assert not is_user_error(ValueError("wrong"))
