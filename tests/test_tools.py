"""Tools: schemas, calls in a turn, exact ids, credit, stored transcripts, the contract check."""

import gzip
import json
import re
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.agent.messages import MessageChat
from mage.agent.tools import ToolLimits, parse_call, read_call, read_tool, read_tools, write_call
from mage.api.tool_check import check_tools
from mage.config.errors import ConfigError, UserError
from mage.config.recipe import build_recipe
from mage.credit.advantages.grpo import estimate
from mage.credit.returns import compute_returns
from mage.credit.samples import make_samples
from mage.environments.base import SingleAgentEnvironment, State, check
from mage.learn.imitate.scripted import Script, write_demonstrations
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.report.transcripts import describe
from mage.run_folder.episode_files import read_contents, write_meta_episodes
from mage.training.metrics import play_sums
from mage.types import MetaEpisode, Task
from tests.endpoint_toys import Server, engine_at
from tests.toys import byte_chat, scripted_agent

# ChatML with tools, written from the published description of the format: schemas in the system
# message, calls as JSON between tags, results between tags in a user message.
TOOL_TEMPLATE = """
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|user|><tool_response>' + m.content + '</tool_response><|end|>' }}
{%- else %}
{{- '<|' + m.role + '|>' + m.content }}
{%- if m.role == 'system' and tools %}
{{- '\\n# Tools' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any whole number.
    """
    return 2 * number


class BoxState(State):
    """Two turns: say the secret number, which only a tool tells."""

    def __init__(self, secret: int) -> None:
        self.secret, self.said = secret, list[str]()

    def peek(self, place: Literal["box", "bag"] = "box") -> str:
        """Look into a place."""
        return f"{place} {self.secret}"

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [("peek", {"place": "box"}), ("double", {"number": 2})]

    def turn(self) -> int | None:
        return None if len(self.said) == 2 else 0

    def legal(self) -> tuple[str, ...]:
        return ("1", "2", "3")

    def apply(self, action: str) -> None:
        self.said.append(action)

    def expert(self) -> str:
        return str(self.secret)

    def observe(self, seat: int) -> str:
        return f"What is in the box? Answer {len(self.said) + 1}."

    def anchor(self, seat: int) -> str:
        return str(len(self.said))

    def scores(self) -> tuple[float, ...]:
        return (float(self.said.count(str(self.secret))),)

    def recap(self, seat: int) -> str:
        return f"You said {' '.join(self.said) or 'nothing'}."


class Box(SingleAgentEnvironment):
    name: ClassVar[str] = "box"
    forfeit_score: ClassVar[float] = 0.0  # type: ignore[misc]

    def tools(self) -> tuple[Any, ...]:
        return BoxState.peek, double

    def start(self, seed: int) -> BoxState:
        return BoxState(seed % 3 + 1)

    def rules(self) -> str:
        return "Find the number in the box."

    def instance(self, seat: int) -> str:
        return "The box is closed."

    def example_action(self) -> str:
        return "2"


class LongState(BoxState):
    def turn(self) -> int | None:
        return None if len(self.said) == 3 else 0


class Long(Box):
    """A box with three turns."""

    def start(self, seed: int) -> LongState:
        return LongState(1)


PEEK = write_call("peek", {})


def play(agent: Agent, world: SingleAgentEnvironment | None = None) -> MetaEpisode:
    setup = PlaySetup(world or Box(), agent, Notes(keep="history"), 1)
    (meta,) = play_groups(setup, [[Task("box", 5, 0, "", "train")]], seed=1)
    return meta


def after_last_user(prompt: str) -> str:
    return prompt.rpartition("<|user|>")[2]


def peeking(prompt: str) -> str:
    """Look once in every turn, then answer with what was seen."""
    seen = after_last_user(prompt)
    if "<tool_response>" not in seen:
        return PEEK
    return f"<action>{seen.partition('box ')[2][0]}</action>"


def tool_chat(template: str = TOOL_TEMPLATE) -> Chat:
    chat = byte_chat()
    return Chat(chat.tokenizer, template, {}, chat.end_ids)


# --- Schemas and calls


def test_the_schema_comes_from_hints_and_docstring():
    assert read_tool(double).schema() == {
        "type": "function",
        "function": {
            "name": "double",
            "description": "Double a number.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer", "description": "Any whole number."}},
                "required": ["number"],
            },
        },
    }
    peek = read_tool(BoxState.peek)
    assert peek.needs_state
    assert peek.line() == "- peek(place: box|bag): Look into a place."


def test_arguments_are_checked_and_converted():
    assert read_tool(double).read_arguments({"number": "4"}) == {"number": 4}
    assert read_tool(BoxState.peek).read_arguments({}) == {}
    for wrong, told in (({}, "number: Field required"), ({"number": 1, "x": 2}, "x: Extra")):
        with pytest.raises(ValueError, match=told):
            read_tool(double).read_arguments(wrong)


def test_a_tool_that_cannot_be_described_is_one_message():
    def undocumented(a: int) -> int:
        return a

    def no_hint(a) -> int:  # type: ignore[no-untyped-def]
        """Do something."""
        return int(a)

    def many(*a: int) -> int:
        """Do something."""
        return sum(a)

    def strange(a: Chat) -> int:
        """Do something."""
        return 1

    for function, told in (
        (undocumented, "no docstring"),
        (no_hint, "type hint for its argument a"),
        (many, "give each argument a name"),
        (strange, "no JSON schema"),
        (lambda: 1, "a function with a name"),
    ):
        with pytest.raises(UserError, match=told):
            read_tool(function)
    with pytest.raises(UserError, match="more than one function with the name double"):
        read_tools([double, double])


@pytest.mark.parametrize(
    "content", ["", "peek", "[]", "{}", '{"name": 1}', '{"name": "a", "arguments": 2}', "[" * 9999]
)
def test_calls_that_are_not_written_as_asked_are_told_so(content):
    with pytest.raises(ValueError, match="the call is not JSON of the form"):
        parse_call(content)


def test_a_call_counts_after_the_end_of_thinking_only():
    assert read_call(f"<think>{PEEK}") is None
    assert read_call(f"<think>{PEEK}</think>") is None
    assert parse_call(read_call(f"<think>hm</think>I look. {PEEK}") or "") == ("peek", {})
    assert parse_call('{"name": "a", "arguments": "{\\"b\\": 1}"}') == ("a", {"b": 1})


# --- Chat templates


def test_a_template_with_tools_lists_them_and_has_its_own_results():
    chat = tool_chat()
    assert chat.writes_calls
    seen: list[str] = []
    meta = play(scripted_agent(peeking, chat, seen=seen))
    system = seen[0].partition("<|user|>")[0]
    assert system.count('"name": "peek"') == 1
    assert "one at a time" in system
    assert "- peek(" not in system
    result = "<|end|><|user|><tool_response>box 1</tool_response><|end|><|assistant|>"
    assert seen[1] == seen[0] + PEEK + result
    assert meta.episodes[0].score == 2


def test_other_templates_get_the_tools_in_the_rules():
    other = TOOL_TEMPLATE.replace('{"name": "', "<function=")
    for chat in (byte_chat(), tool_chat(other)):
        assert not chat.writes_calls
        seen: list[str] = []
        assert play(scripted_agent(peeking, chat, seen=seen)).episodes[0].score == 2
        assert f"like this: {write_call('peek', {})}" in seen[0]
        assert "- double(number: integer): Double a number. number: Any whole number." in seen[0]
        assert seen[1].endswith("<tool_response>\nbox 1\n</tool_response><|end|><|assistant|>")


def test_a_remote_model_gets_results_as_a_user_message():
    chat = MessageChat()
    ids = chat.first("Rules.", "Go.") + chat.encode(PEEK) + chat.result("box 1")
    told = "<tool_response>\nbox 1\n</tool_response>"
    assert chat.messages(ids)[-1] == {"role": "user", "content": told}


def test_a_model_behind_an_endpoint_calls_tools(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def reply(message: str) -> str:
        shown = message.partition("box ")[2]
        return f"<action>{shown[0]}</action>" if shown else f"I look. {PEEK} Perhaps 3."

    with Server(lambda message: reply(after_tags(message))) as server:
        engine = engine_at(server)
        meta = play(Agent(engine, engine.chat, SamplingOptions(max_tokens=40)))
    assert meta.episodes[0].score == 2
    (call,) = meta.episodes[0].turns[0].calls
    assert (call.completion.text, call.result) == (f"I look. {PEEK}", "box 1")


def after_tags(message: str) -> str:
    return message.partition("<tool_response>\n")[2]


# --- Play, credit and learning


def test_prompts_only_grow_and_sampled_ids_are_trained():
    meta = play(scripted_agent(peeking))
    first, second = meta.episodes[0].turns
    for turn in (first, second):
        (call,) = turn.calls
        assert turn.prompt_ids[: len(call.prompt_ids)] == call.prompt_ids
        rest = turn.prompt_ids[len(call.prompt_ids) :]
        assert rest[: len(call.completion.token_ids)] == call.completion.token_ids
    whole = first.prompt_ids + first.completion.token_ids
    assert second.calls[0].prompt_ids[: len(whole)] == whole
    credits = estimate(compute_returns(meta))
    samples = make_samples(credits)
    assert [(one.kind, one.reply_ids) for one in samples] == [
        (kind, reply.token_ids)
        for turn in (first, second)
        for kind, reply in (("call", turn.calls[0].completion), ("play", turn.completion))
    ]
    assert [one.advantage for one in samples] == [
        credit.advantage for credit in credits for _ in range(2)
    ]
    assert meta.generated_tokens == sum(len(one.reply_ids) for one in samples)


def test_the_last_call_is_announced_and_a_further_one_is_illegal():
    agent = replace(scripted_agent(lambda prompt: PEEK), limits=ToolLimits(calls=2))
    turn = play(agent).episodes[0].turns[0]
    assert [call.result for call in turn.calls] == [
        "box 1",
        "box 1\nThis was your last call in this turn. Now give your action.",
    ]
    assert (turn.action, turn.legal, turn.penalty) == (None, False, -0.5)
    none = replace(agent, limits=ToolLimits(calls=0))
    assert play(none).episodes[0].turns[0].calls == ()


def test_errors_of_calls_are_shown():
    wrong = (write_call("look", {}), write_call("double", {"number": "x"}))
    replies = iter((*wrong, "<tool_call>?</tool_call>"))
    meta = play(scripted_agent(lambda prompt: next(replies, "<action>1</action>")))
    calls = meta.episodes[0].turns[0].calls
    assert all(call.failed for call in calls)
    assert calls[0].result == "Error: there is no tool 'look'. Tools: peek, double"
    assert calls[1].result.startswith("Error: wrong arguments of double: number: Input should be")
    assert calls[2].result.startswith("Error: the call is not JSON of the form")
    sums = play_sums([meta], tools=True)
    assert sums["tool_calls"] == (3.0, 2.0)
    assert sums["tool_errors"] == (3.0, 3.0)
    assert "tool_calls" not in play_sums([meta])


def test_thoughts_stay_in_the_turn_and_leave_the_history():
    def think(prompt: str) -> str:
        return f"<think>I see.</think>{peeking(prompt)}"

    seen: list[str] = []
    play(scripted_agent(think, seen=seen))
    assert "<think>I see.</think><tool_call>" in seen[1]
    assert "<think>" not in seen[2]
    assert f"{PEEK}<|end|><|user|><tool_response>\nbox 1" in seen[2]


def test_past_turns_make_room_for_results():
    """The tools of the third turn need room: the second turn is folded."""

    free = play(scripted_agent(peeking), Long()).episodes[0].turns[-1]
    agent = scripted_agent(peeking)
    agent.engine.context = len(free.prompt_ids) - 1 + agent.sampling.max_tokens
    turn = play(agent, Long()).episodes[0].turns[-1]
    assert (turn.folded, turn.overflow, turn.legal) == (1, False, True)
    assert len(turn.prompt_ids) < len(free.prompt_ids)
    assert turn.calls[0].prompt_ids == free.calls[0].prompt_ids


def test_the_warm_up_teaches_calls():
    setup = PlaySetup(Box(), scripted_agent(lambda prompt: ""), Notes(keep="history"), 1)
    task = Task("box", 5, 0, "", "train")
    expert = write_demonstrations(setup, [task], 0, Script(expert=True))
    chat = setup.agent.chat
    assert [(one.kind, chat.decode(one.reply_ids)) for one in expert] == [
        ("call", write_call("peek", {"place": "box"})),
        ("call", write_call("double", {"number": 2})),
        ("play", "<action>1</action>"),
    ] * 2
    some = write_demonstrations(setup, [task] * 20, 0)
    share = sum(one.kind == "call" for one in some) / sum(one.kind == "play" for one in some)
    assert 0.25 < share < 0.75


# --- Stored and shown


def test_calls_are_stored_read_and_shown(tmp_path):
    meta = play(scripted_agent(peeking))
    path = tmp_path / "step_000001.jsonl.gz"
    write_meta_episodes(path, [meta])
    rows = read_contents(path).rows
    assert rows[0][-2] == meta.generated_tokens
    path.with_name("step_000001.index.json").unlink()
    assert read_contents(path).rows == rows
    told = "\n".join(describe(meta, "a test"))
    assert f"- Calls a tool: `{PEEK}`" in told
    assert "- Gets: `box 1`" in told
    write_meta_episodes(path, [play(scripted_agent(lambda prompt: "<action>1</action>"))])
    stored = json.loads(gzip.decompress(path.read_bytes()))
    assert "calls" not in stored["episodes"][0]["turns"][0], "as before there were tools"


# --- The contract and the options


_count = 0


def count(state: State) -> int:
    """Count the calls."""
    global _count
    _count += 1
    return _count


def draw(state: State) -> float:
    """Draw a random number. It is the same for all members of a group."""
    import random

    return random.random()


def silent() -> None:
    pass


def test_the_check_finds_tools_that_remember_and_calls_that_fail(monkeypatch):
    assert check(Box(), games=5) == []
    assert check_tools(Box()) == [], "tools may depend on the task and on their arguments"
    monkeypatch.setattr(Box, "tools", lambda self: (BoxState.peek, count, draw))
    faults = "\n".join(check_tools(Box()))
    assert re.search('"count".* when it is made again', faults)
    assert '"draw"' not in faults
    assert re.search("calls\\(\\) names .*there is no tool 'double'", faults)
    monkeypatch.setattr(Box, "tools", lambda self: (silent,))
    (fault,) = check_tools(Box())
    assert fault == "the tool silent has no docstring: say in one sentence what it does"


def test_options_of_tools_need_tools_and_published_prompts_have_none():
    tables: dict[str, Any] = {"environments": {"name": "doors"}, "agent": {"tool_calls": 2}}
    with pytest.raises(ConfigError, match="no effect in environments without tools"):
        build_recipe(tables)
    tables = {"environments": {"name": f"{__name__}.Box"}, "agent": {"prompts": "published"}}
    with pytest.raises(ConfigError, match="the environment offers some"):
        build_recipe(tables)
    tables["agent"] |= {"tool_calls": 0}
    assert build_recipe(tables).agent.tool_calls == 0
