"""Draws the five pictures of the documentation as SVG: `python scripts/draw_pictures.py`.

Figures are not typed here. The credit example is computed by the package from
`examples/credit.jsonl`, and the adaptation picture is read from `results/`. Each picture has a
light background of its own, so it can be read on light and dark pages.
"""

import json
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from mage.config.loading import load_recipe
from mage.credit.trajectories import credit_rows, read_trajectories

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 640
INK, GREY, LINE, PAPER, WHITE = "#1f2933", "#627282", "#b6c2cd", "#f7f9fb", "#ffffff"
FAINT = "#e1e7ec"
BLUE, ORANGE, PURPLE, GREEN = "#1f6fb2", "#c2570c", "#7b3fa0", "#2d7d46"
PALE = {BLUE: "#dcebf8", ORANGE: "#fde8d7", PURPLE: "#eee1f6", GREEN: "#dff1e4", LINE: WHITE}
Point = tuple[float, float]


@dataclass(frozen=True)
class Picture:
    """An SVG of fixed width. Shapes are drawn in the order of the calls."""

    height: int
    parts: list[str] = field(default_factory=list)

    def add(self, tag: str, words: str = "", /, **attributes: object) -> None:
        pairs = (f'{name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        self.parts.append(f"<{tag} {' '.join(pairs)}>{escape(words)}</{tag}>")

    def text(self, x: float, y: float, words: str, anchor: str = "middle", fill: str = INK) -> None:
        """A line of text; words that begin with * are bold."""
        weight = 600 if words.startswith("*") else 400
        place = {"x": f"{x:g}", "y": f"{y:g}", "text_anchor": anchor}
        self.add("text", words.removeprefix("*"), **place, fill=fill, font_weight=weight)

    def box(self, x: float, y: float, size: Point, color: str, *lines: str) -> None:
        """A rounded box with centred lines."""
        width, height = size
        look = {"rx": 7, "fill": PALE[color], "stroke": color, "stroke_width": 1.6}
        self.add("rect", x=x, y=y, width=width, height=height, **look)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 17 - 11 * len(lines) + 22 * number, line)

    def line(self, *points: Point, color: str = GREY, tip: bool = True, dash: str = "0") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        end = {"marker_end": f"url(#tip{color[1:]})"} if tip else {}
        look = {"fill": "none", "stroke": color, "stroke_width": 2, "stroke_dasharray": dash}
        self.add("polyline", points=path, **look, **end)

    def dot(self, x: float, y: float, radius: float, color: str, fill: str = "") -> None:
        look = {"fill": fill or color, "stroke": color, "stroke_width": 2}
        self.add("circle", cx=f"{x:g}", cy=y, r=radius, **look)

    def write(self, path: Path) -> None:
        tips = "".join(
            f'<marker id="tip{color[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{color}"/></marker>'
            for color in (GREY, ORANGE, PURPLE, GREEN)
        )
        size = f'width="{WIDTH}" height="{self.height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" {size} '
            f'font-family="Helvetica, Arial, sans-serif" font-size="16"><defs>{tips}</defs>'
            f'<rect {size} rx="10" fill="{PAPER}"/>'
        )
        path.write_text("\n".join([head, *self.parts, "</svg>\n"]))


def draw_meta_episode() -> Picture:
    """Three episodes, the memory that they read, reflections, and where reward enters."""
    picture = Picture(436)
    task = "*one task: the same opponent in all episodes; fixed weights"
    picture.box(20, 16, (600, 38), LINE, task)
    rewards = ("r₁ = R₁", "r₂ = R₂ − R₁", "r₃ = R₃ − R₂")
    for n, memory in enumerate(("empty", "m₁", "m₁, m₂")):
        x = 20 + 225 * n
        picture.box(x, 76, (150, 56), PURPLE, f"*memory M{'₀₁₂'[n]}", memory)
        picture.line((x + 75, 132), (x + 75, 166), color=PURPLE)
        picture.box(x, 168, (150, 90), BLUE, f"*episode {n + 1}", "", "turns")
        for turn in range(3):
            picture.dot(x + 35 + 40 * turn, 213, 6, ORANGE if turn == 2 else BLUE)
        picture.line((x + 115, 220), (x + 115, 306), color=ORANGE)
        picture.box(x, 308, (150, 38), ORANGE, f"*{rewards[n]}")
        if n < 2:
            picture.line((x + 150, 213), (x + 166, 213), color=PURPLE)
            picture.box(x + 168, 196, (42, 34), PURPLE, f"*m{'₁₂'[n]}")
            picture.line((x + 189, 196), (x + 189, 104), (x + 223, 104), color=PURPLE)
            picture.line((x + 225, 327), (x + 152, 327), color=ORANGE, dash="6 5")
            picture.text(x + 188, 316, "× .6", fill=ORANGE)
    picture.text(320, 374, "After an episode the agent writes a reflection m.")
    picture.text(320, 396, "Reward r enters at the last turn of an episode: the improvement.")
    picture.text(320, 418, "It also counts for the episodes before, × .6 for each.")
    return picture


def draw_credit() -> Picture:
    """The credit of one turn of `examples/credit.jsonl`, with the returns it is compared with."""
    (_, metas), *_ = read_trajectories(ROOT / "examples" / "credit.jsonl")
    rows = credit_rows(metas, load_recipe("kuhn_poker+mage"))
    anchors = [turn.anchor for meta in metas for one in meta.episodes for turn in one.turns]
    first, own, later = rows[:3]  # member 1: both turns of episode 1, first turn of episode 2
    picture = Picture(456)
    for n in (0, 1):
        picture.text(242 + 240 * n, 30, f"*episode {n + 1}")
        picture.text(182 + 240 * n, 54, "turn 1", fill=GREY)
        picture.text(302 + 240 * n, 54, "turn 2", fill=GREY)
    for row, anchor in zip(rows, anchors, strict=True):
        member, n, t = row.where.member, row.where.episode, row.where.index
        color = ORANGE if row is own else LINE
        if member > 1:
            color = BLUE if (n, t) == (0, 0) else PURPLE if anchor == anchors[1] else LINE
        value = f"*G {row.step_return:.1f}".replace("-", "−")
        x, y = 130 + 240 * n + 120 * t, 5 + 62 * member
        picture.box(x, y, (104, 50), color, value, f"“{anchor}”")
        rewards = ", ".join(f"{one.reward:g}" for one in metas[member - 1].episodes)
        if (n, t) == (0, 0):
            picture.text(20, y + 20, f"*member {member}", "start")
            picture.text(20, y + 42, f"R {rewards}".replace("-", "−"), "start", GREY)
    value, reward = f"{own.step_return:.1f}", metas[0].episodes[0].reward
    before = f"{first.step_return:.1f} minus the mean of the blue cells:"
    lines = (
        (
            ORANGE,
            "*return",
            f"reward {reward:g}, and .6 × {later.step_return:.1f} of the next episode: {value}",
        ),
        (BLUE, "*episode", f"{before} {own.episode_advantage:+.1f}"),
        (
            PURPLE,
            "*step",
            f"{value} minus the purple cells, episodes centred: {own.step_advantage:+.1f}",
        ),
        (GREEN, "*advantage", f"A = episode + step = {own.advantage:+.1f}"),
    )
    for number, (color, name, words) in enumerate(lines):
        picture.box(20, 268 + 46 * number, (104, 36), color, name)
        picture.text(136, 292 + 46 * number, words.replace("-", "−"), "start")
    return picture


def draw_trie() -> Picture:
    """Three samples of one micro-batch as padded rows, as a forest and as a trie."""
    picture = Picture(430)
    long, short = "state 1,reply 1,move 1,state 2,reply 2", "state 3,reply 3"
    rows = ("rules,state 1,reply 1,,", "rules,state 1,move 1,state 2,reply 2", f"rules,{short},,")
    trees, trie = (long, f"{short},,,"), f"rules,{long},{short}"
    colors = {"rules": LINE, "state": BLUE, "move": BLUE, "reply": ORANGE}

    def blocks(left: float, top: float, words: str) -> None:
        for x, word in enumerate(words.split(",")):
            if word:
                picture.box(left + 74 * x, top, (70, 30), colors[word.split()[0]], word)
            else:
                ends = ((left + 74 * x + 4, top + 15), (left + 74 * x + 66, top + 15))
                picture.line(*ends, color=LINE, tip=False)

    counts = [sum(one.count(",") + 1 for one in lines) for lines in (rows, ("", *trees), (trie,))]
    picture.text(24, 32, f"*rows: one per reply, padded ({counts[0]} blocks)", "start")
    picture.text(24, 188, f"*forest: a root, trees of one width ({counts[1]} blocks)", "start")
    picture.text(24, 308, f"*trie: every token once, depth first ({counts[2]} blocks)", "start")
    for number, row in enumerate(rows):
        blocks(24, 44 + 36 * number, row)
    blocks(24, 218, "rules")
    for number, tree in enumerate(trees):
        blocks(130, 200 + 36 * number, tree)
        picture.line((96, 233), (126, 215 + 36 * number))
    blocks(24, 320, trie)
    for first, last, low in ((0, 7, 378), (1, 5, 364), (6, 7, 364)):
        left, right, top = 26 + 74 * first, 92 + 74 * last, low - 6
        bracket = ((left, top), (left, low), (right, low), (right, top))
        picture.line(*bracket, color=PURPLE, tip=False)
    picture.text(320, 408, "A bracket is a subtree: all blocks in it see its first block.")
    return picture


def draw_loop() -> Picture:
    """Play, credit and learn, with the records on the arrows."""
    picture = Picture(556)
    stages = (
        (BLUE, "*play", "episodes, reflections, memory", "Task: environment, seed, opponent, seat"),
        (PURPLE, "*returns", "rewards, discounted", "MetaEpisode: episodes of turns"),
        (PURPLE, "*advantages", "compared inside the group", "Return: G of every turn"),
        (PURPLE, "*samples", "tokens as they were sampled", "Credit: advantage of every turn"),
        (GREEN, "*learn", "packed rows, clipped loss", "Sample, Batch: training rows"),
    )
    for number, (color, name, words, record) in enumerate(stages):
        top = 52 + 102 * number
        picture.line((320, max(14, top - 46)), (320, top - 2))
        picture.box(170, top, (300, 56), color, name, words)
        picture.text(334, top - 20, record, "start")
    corners = ((146, 144), (620, 144), (620, 421), (146, 421), (146, 144))
    picture.line(*corners, color=PURPLE, tip=False, dash="5 5")
    picture.text(606, 168, "*credit", "end", PURPLE)
    picture.line((170, 488), (80, 488), (80, 80), (168, 80), color=GREEN)
    picture.text(70, 284, "new", "end", GREEN)
    picture.text(70, 304, "weights", "end", GREEN)
    picture.text(320, 540, "One update. Every stage makes new records.")
    return picture


# The files of every world; {} is the condition. `score` and `exact` have exact bounds.
WORLDS = {
    "Rock-paper-scissors, SmolLM2": ("smollm2_rps/evaluations/{}_test", "score"),
    "Rock-paper-scissors, Qwen2.5-1.5B": ("qwen_rps/both_seed1/evaluations/{}_test", "score"),
    "Doors, Qwen2.5-1.5B": ("qwen_doors/mage_seed1/evaluations/{}_test", "success"),
    "Rock-paper-scissors, 0.1 M parameters": ("demo/evaluations/{}_test", "score"),
    "Kuhn poker, three styles, SmolLM2": ("smollm2_kuhn_poker_seed1/exact_test{}", "exact"),
    "Rock-paper-scissors, reflections": ("smollm2_rps_reflections/evaluations/{}_test", "score"),
    "The same, Qwen2.5-1.5B": (
        "qwen_rps_controls/reflections_late_seed1/evaluations/{}_test",
        "score",
    ),
    "Kuhn poker, players never met, 0.1 M": ("kuhn_random_seed2/exact_test{}", "exact"),
    "ALFWorld, generated rooms, 0.4 M": ("alfworld_three_games/evaluations/{}_test", "success"),
    "ALFWorld, official, SmolLM2": ("smollm2_alfworld_methods/mage_seed2_test{}", "success"),
    "Sokoban, two boxes, SmolLM2": ("smollm2_sokoban_long/mage_seed0_test{}", "success"),
    "WebShop, SmolLM2": ("smollm2_webshop_loss/mage_seed0_test{}_four_plays", "success"),
    "Tic-Tac-Toe, SmolLM2": ("smollm2_tic_tac_toe/evaluations/{}_test", "success"),
}


def read(name: str) -> Any:
    found = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found.get("evaluation", found)


def read_shares(files: str, measure: str) -> tuple[list[float], float, list[float]]:
    """Episodes 1 to 3, episode 3 with emptied memory, and the interval, between 0 and 1."""
    conditions = ("after", "emptied") if "evaluations" in files else ("", "_emptied")
    after, emptied = (read(files.format(condition)) for condition in conditions)
    if measure == "exact":
        seats = [read(f"{files.split('/')[0]}/ceilings_{seat}") for seat in ("first", "second")]
        zero, one = (sum(s[key] for s in seats) / 2 for key in ("non_adapting", "bayes_final"))
        gain = after.get("over_players", {}).get("gain")  # a few known opponents: no interval
        values, without = (found["cells"][0]["scores"] for found in (after, emptied))
    else:
        episodes = after["overall"]["episodes"]
        zero, one = after["overall"]["non_adapting"], episodes[2]["ceiling"]
        gain = episodes[2][f"{measure}_gain"]
        found = (panel["overall"]["episodes"][:3] for panel in (after, emptied))
        values, without = ([one[measure]["value"] for one in episodes] for episodes in found)
    if measure == "success":
        zero, one = values[0], 1.0
    ends = [values[0] + gain[end] for end in ("low", "high")] if gain else []
    shares = [(value - zero) / (one - zero) for value in (*values, without[2], *ends)]
    return shares[:3], shares[3], shares[4:]


def draw_adaptation() -> Picture:
    """Episodes 1, 2 and 3 of every world between no adaptation (0) and the most possible (1)."""
    bottom = 90 + 50 * len(WORLDS)
    picture = Picture(bottom + 108)
    picture.text(24, 28, "*0 = without adapting", "start")
    picture.text(616, 28, "*1 = the most that is possible", "end")
    for quarter in range(5):
        column = 50 + 130 * quarter
        picture.line((column, 62), (column, bottom), color=FAINT, tip=False)
        picture.text(column, 54, f"{quarter / 4:g}", fill=GREY)
    for number, (name, (files, measure)) in enumerate(WORLDS.items()):
        y, (shares, emptied, ends) = 108 + 50 * number, read_shares(files, measure)
        color = ORANGE if measure == "success" else BLUE
        picture.text(56, y - 15, name, "start")
        places = [50 + 520 * share for share in shares]
        picture.line((places[0], y), (places[2], y), color=color, tip=False)
        for x in (50 + 520 * end for end in ends):
            picture.line((places[2], y), (x, y), (x, y - 5), (x, y + 5), color=color, tip=False)
        for x, radius in zip(places, (4.0, 5.5, 8.0), strict=True):
            picture.dot(x, y, radius, color)
        picture.dot(50 + 520 * emptied, y, 8, GREY, "none")
    notes = (
        ("Dots: episodes 1, 2, 3 (the largest). Ring: episode 3, memory emptied.", INK),
        ("Blue: 0 is the best without memory, 1 the best learner, both exact.", BLUE),
        ("Orange: 0 is the success in episode 1, 1 is every task.", ORANGE),
        ("Bars: 95 % interval of the gain from episode 1 to 3.", INK),
    )
    for number, (words, color) in enumerate(notes):
        picture.text(24, bottom + 28 + 22 * number, words, "start", color)
    return picture


if __name__ == "__main__":
    for draw in (draw_meta_episode, draw_credit, draw_trie, draw_loop, draw_adaptation):
        name = draw.__name__.removeprefix("draw_")
        draw().write(ROOT / "docs" / "images" / f"{name}.svg")
        print(f"docs/images/{name}.svg")
