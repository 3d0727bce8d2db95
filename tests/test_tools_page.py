"""The page on tools: its environment is that of examples/my_lab and trains with calls of tools."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mage
from mage.api.dataset import dataset_rows
from mage.api.tool_check import check_tools
from mage.cli.main import app
from mage.config.errors import UserError
from mage.config.menus import find_item
from mage.environments.base import check
from mage.report.transcripts import describe
from mage.run_folder import RunFolder
from mage.training.warm_start import make_warm_start
from mage.viewer.export import collect
from mage.viewer.library import Library
from tests.adapter_runs import check_training, tiny_recipe

ROOT = Path(mage.__file__).parents[1]
PAGE, LAB = ROOT / "docs" / "tutorials" / "tools.md", ROOT / "examples" / "my_lab"
WORLD = {"name": "my_lab.market", "size": 1, "goods": 4, "highest": 4}


@pytest.fixture(autouse=True)
def lab(monkeypatch):
    """The package of the examples can be imported, also in processes that a test starts."""
    monkeypatch.syspath_prepend(LAB)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_the_page_shows_the_file_of_the_example():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code == (LAB / "my_lab" / "market.py").read_text()


def test_the_market_keeps_the_contract_with_its_tools():
    market = find_item("environments", "my_lab.market")
    for world in (market(), market(size=1, goods=4, highest=4)):
        assert check(world, games=20) == []
        assert check_tools(world) == []


def test_the_calculator_computes_and_runs_no_code():
    from my_lab.market import calculate

    assert calculate("3 + 4 * (2 - 1)") == 7
    for bad in ("__import__('os')", "9 ** 9", "len", "'a' * 3"):
        with pytest.raises(ValueError, match="only whole numbers"):
            calculate(bad)


def test_a_function_as_the_agent_calls_tools():
    """It solves every task of the panel with one search; without the call it cannot."""

    def search(seen: mage.Seen) -> str:
        good = seen.observation.split()[-1]
        return seen.call("search", word=good).removeprefix(f"{good}: ")

    recipe = tiny_recipe(WORLD)
    found = mage.evaluate(recipe, policy=search, size=20)
    assert [one.score.value for one in found.overall.episodes] == [1.0, 1.0]

    def greedy(seen: mage.Seen) -> str:
        assert seen.call("search", price=1).startswith("Error: wrong arguments of search")
        for _ in range(4):
            seen.call("search", word="")
        return "1"

    with pytest.raises(UserError, match=r"cannot call search: agent\.tool_calls = 4"):
        mage.evaluate(recipe, policy=greedy, size=1)
    with pytest.raises(UserError, match="the environment offers no tools"):
        mage.evaluate(policy=greedy, environment="kuhn_poker", opponents="random", size=1)


def test_a_person_types_calls_of_tools():
    """A text is the first argument; errors are shown; a call is no move and costs nothing."""
    typed = 'search lamp\nsearch {"word": "zebra"}\nsearch\ncalculate 3 + 4\n5\n'
    words = ["play", "my_lab.market", "--episodes", "1", "--seed", "1"]
    shown = CliRunner().invoke(app, words, input=typed).stdout
    assert "- search(word: string): Search the price list." in shown
    for result in ("lamp: 3", "Nothing found.", "Error: wrong arguments of search", "> 7\n"):
        assert result in shown
    assert "You said 5." in shown


@pytest.mark.e2e
def test_a_run_with_tools_is_killed_resumed_evaluated_and_viewed(tmp_path):
    warm = tmp_path / "warm"
    agent = {"max_tokens": 72, "tool_calls": 1}
    warmup = {"play": "expert", "steps": 150, "batch": 8, "turns": 4, "lr": 5e-3}
    sections = {"engines": {"context": 1024}, "agent": agent}
    make_warm_start(tiny_recipe(WORLD, **sections, warmup=warmup), warm, lambda line: None)
    recipe = tiny_recipe(WORLD, **sections, model={"path": str(warm)})
    folder = check_training(recipe, tmp_path)
    metas = folder.read_episodes(1)
    turns = [turn for meta in metas for episode in meta.episodes for turn in episode.turns]
    called = [turn for turn in turns if turn.calls]
    assert called, "the model of the warm-up calls tools"
    for turn in called:
        (call,) = turn.calls
        sampled = call.prompt_ids + call.completion.token_ids
        assert turn.prompt_ids[: len(sampled)] == sampled
        assert len(call.completion.logprobs) == len(call.completion.token_ids)
    figures = folder.metrics()[0]
    assert figures["samples"] == len(turns) + len(called)
    assert figures["tool_calls"] == len(called) / len(turns)
    assert figures["mismatch"] < 1e-4
    _check_shown(folder, called[0].calls[0].result)


def _check_shown(folder: RunFolder, result: str) -> None:
    shown = dict(collect(Library([folder.path])))
    turns = [
        turn
        for path, meta in shown.items()
        if "/meta/" in path
        for episode in meta["episodes"]
        for turn in episode["turns"]
    ]
    calls = [call for turn in turns for call in turn["calls"]]
    assert result in [call["result"] for call in calls]
    assert all(call["tokens"] for call in calls)
    told = "\n".join(line for meta in folder.read_episodes(1) for line in describe(meta, "test"))
    assert "- Calls a tool: " in told
    rows = list(dataset_rows(folder))
    assert any(row["calls"] for row in rows)
