"""Wrong input of a training: one message, exit code 2, and no run folder."""

import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mage.cli import main
from mage.cli.main import app, is_user_error


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


def test_an_error_has_its_message_after_an_update_has_changed_the_file_that_raised_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug stays a bug: `int` raises its own ValueError on the line of a `raise` statement."""
    monkeypatch.setattr(main, "PACKAGE", tmp_path)
    file = tmp_path / "part.py"
    file.write_text(
        "def refuse():\n    raise ValueError(\n        'wrong'\n    )\n"
        "def fail():\n    raise ValueError(int('wrong'))\n"
    )
    part = runpy.run_path(str(file))
    for change in ("", "import this\n" * 9):
        file.write_text(change + file.read_text())
        for name, expected in (("refuse", True), ("fail", False)):
            with pytest.raises(ValueError, match="wrong") as caught:
                part[name]()
            assert is_user_error(caught.value) is expected
