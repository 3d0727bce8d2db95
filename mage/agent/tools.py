"""Tools: Python functions that an agent may call before it acts, and how calls are written.

The schema of a tool comes from the type hints and the docstring (Google style) of its function. A
call is JSON between tags, as Qwen's and many other chat templates write it. A model whose template
has no tools, or another format, is told this one in its prompt (`Chat.writes_calls`).
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from mage.agent.prompts import template
from mage.agent.thoughts import CLOSE as THOUGHT_END
from mage.agent.thoughts import is_thinking
from mage.config.errors import UserError

CALL_END = "</tool_call>"
_CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)
_STATE = ("self", "state")  # first parameters that get the running state
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
Function = Callable[..., Any]
Json = dict[str, Any]


class CallError(ValueError):
    """A call that cannot be made. The agent is shown the message."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What an agent may use: calls in one turn, seconds of a call, characters of a result."""

    calls: int = 4
    seconds: float = 10.0
    characters: int = 2000


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with its schema. `arguments` checks the arguments of a call."""

    function: Function
    name: str
    description: str
    arguments: type[BaseModel]
    needs_state: bool

    def schema(self) -> Json:
        """The description in the form that chat templates expect."""
        parameters = _without_titles(self.arguments.model_json_schema())
        about = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": about}

    def argument_names(self) -> list[str]:
        """In the order of the function."""
        return [str(one.alias) for one in self.arguments.model_fields.values()]

    def line(self) -> str:
        """The description in one line, for models whose chat template has no tools."""
        found: Json = self.schema()["function"]["parameters"]["properties"]
        names = ", ".join(f"{name}: {_kind(one)}" for name, one in found.items())
        told = [
            f"{name}: {one['description']}" for name, one in found.items() if one.get("description")
        ]
        return f"- {self.name}({names}): {' '.join([self.description, *told])}"

    def read_arguments(self, given: Mapping[str, Any]) -> Json:
        """The arguments as the hints describe them; CallError if they are wrong."""
        try:
            found = self.arguments.model_validate(given)
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
                for one in error.errors(include_url=False, include_context=False)[:3]
            ]
            raise CallError(f"wrong arguments of {self.name}: {'; '.join(faults)}") from None
        names = type(found).model_fields
        return {str(names[own].alias): getattr(found, own) for own in found.model_fields_set}


def read_tools(functions: Sequence[Function]) -> tuple[Tool, ...]:
    """The tools of an environment; UserError if one cannot be described."""
    tools = tuple(map(read_tool, functions))
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"tools() has more than one function with the name {twice[0]}: rename one")
    return tools


@lru_cache(maxsize=256)
def read_tool(function: Function) -> Tool:
    """A function as a tool, from its name, hints and docstring."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UserError(f"tools() returned {function!r}: a tool must be a function with a name")
    about, told = read_docstring(inspect.getdoc(function) or "")
    if not about:
        raise UserError(f"the tool {name} has no docstring: say in one sentence what it does")
    parameters = list(inspect.signature(function).parameters.values())
    needs_state = bool(parameters) and parameters[0].name in _STATE
    return Tool(
        function,
        name,
        about,
        _arguments_of(function, name, parameters[needs_state:], told),
        needs_state,
    )


def _arguments_of(
    function: Function, name: str, parameters: Sequence[inspect.Parameter], told: Mapping[str, str]
) -> type[BaseModel]:
    """The model of the arguments. Its fields have other names: some words are reserved."""
    hints = _hints(function, name)
    fields: dict[str, Any] = {}
    for number, one in enumerate(parameters):
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise UserError(f"the tool {name} has the parameter {one}: give each argument a name")
        if one.name not in hints:
            raise UserError(f"the tool {name} needs a type hint for its argument {one.name}")
        default = ... if one.default is one.empty else one.default
        about = Field(default, alias=one.name, description=told.get(one.name))
        fields[f"argument_{number}"] = (hints[one.name], about)
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        found: type[BaseModel] = create_model(name, __config__=config, **fields)
        json.dumps(found.model_json_schema())
    except (PydanticUserError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the type hints of the tool {name} have no JSON schema: {reason}"
        ) from None
    return found


def _hints(function: Function, name: str) -> Json:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UserError(f"the type hints of the tool {name} cannot be read: {error}") from None


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description of a function and of its arguments.

    >>> read_docstring("Add numbers.\\n\\nArgs:\\n    a: A\\n        number.\\n    b: Another.")
    ('Add numbers.', {'a': 'A number.', 'b': 'Another.'})
    """
    about: list[str] = []
    told: dict[str, list[str]] = {}
    section, indent = "", 0
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, indent = found[1], 0
        elif not section:
            about.append(line.strip())
        elif section in ("Args", "Arguments", "Parameters"):
            item = _ARGUMENT.match(line)
            if item and (not indent or len(item[1]) <= indent):
                indent, told[item[2]] = len(item[1]), [item[3]]
            elif told and line.strip():
                next(reversed(told.values())).append(line.strip())
    return _joined(about), {name: _joined(lines) for name, lines in told.items()}


def _joined(lines: Sequence[str]) -> str:
    return " ".join(filter(None, lines))


def _without_titles(schema: Any) -> Any:
    """A JSON schema without the titles that pydantic adds. A property may be called title."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and key != "additionalProperties"
    }


def _kind(schema: Json) -> str:
    """The type of an argument in a word."""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    kinds = [_kind(one) for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return "|".join(map(str, choices or kinds)) or str(schema.get("type", "any"))


# --- Prompts and calls ----------------------------------------------------------------------------


def tools_text(tools: Sequence[Tool], calls: int, listed: bool) -> str:
    """What the rules say about tools. `listed`: the chat template itself lists them."""
    if listed:
        return template("tools_listed").format(calls=calls)
    lines = "\n".join(tool.line() for tool in tools)
    return template("tools").format(calls=calls, example=_example(tools[0]), tools=lines)


def _example(tool: Tool) -> str:
    needed = tool.schema()["function"]["parameters"].get("required", ())
    return write_call(tool.name, dict.fromkeys(needed, "..."))


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the agent writes it.

    >>> write_call("add", {"a": 1})
    '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    """
    written = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>{written}</tool_call>"


def read_call(text: str, opened: bool = False) -> str | None:
    """The content of the last complete call after the end of thinking; None without a call.

    >>> read_call('<think><tool_call>a</tool_call></think>I add. <tool_call>{}</tool_call>')
    '{}'
    """
    if CALL_END not in text or is_thinking(text, opened):
        return None
    after = text.rfind(THOUGHT_END) + len(THOUGHT_END) if THOUGHT_END in text else 0
    found = list(_CALL.finditer(text, after))
    return found[-1][1] if found else None


def parse_call(content: str) -> tuple[str, Json]:
    """Name and arguments of a call; CallError if it is not written as asked.

    >>> parse_call('{"name": "add", "arguments": {"a": 1}}')
    ('add', {'a': 1})
    """
    try:
        found = json.loads(content)
        arguments = found.get("arguments", {})
        if isinstance(arguments, str):  # some models write the arguments as a text of JSON
            arguments = json.loads(arguments)
    except (ValueError, AttributeError, RecursionError):
        found = arguments = None
    if not (isinstance(arguments, dict) and isinstance(name := found.get("name"), str)):
        example = json.dumps({"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}})
        raise CallError(f"the call is not JSON of the form {example}")
    return name, arguments
