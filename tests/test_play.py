"""Play with real games, real opponents and a scripted model."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from toys import byte_chat, scripted_agent

from mage.agent.agent import SamplingOptions, read_action
from mage.engines.base import ScriptedEngine, run
from mage.environments.alfworld import Alfworld
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Request, Task


def kuhn(seat=0, opponent="conservative", seed=7):
    return Task("kuhn_poker", seed, seat, opponent, "train")


def tic_tac_toe(seat=0, opponent="random", seed=3):
    return Task("tic_tac_toe", seed, seat, opponent, "train")


def always(move):
    return lambda prompt: (
        "It was a game." if "Write a short note" in prompt else f"<action>{move}</action>"
    )


def first_free(prompt):
    """The first free cell of Tic-Tac-Toe."""
    return f"<action>{prompt.rsplit('Free: ', 1)[1][0]}</action>"


def play_all(reply, tasks, keep="none", world=None, seen=None, seed=1, batch=None, **options):
    """Groups of tasks, played by a function of the prompt or by an agent."""
    agent = scripted_agent(reply, seen=seen, batch=batch) if callable(reply) else reply
    setup = PlaySetup(world or KuhnPoker(), agent, Notes(keep=keep), **options)
    return play_groups(setup, tasks, seed)


def play(reply, keep="none", task=None, **options):
    """One meta-episode."""
    return play_all(reply, [[task or kuhn()]], keep, **options)[0]


def test_a_meta_episode_has_its_episodes_reflections_and_memories():
    played = play(always("bet"), "both")
    assert len(played.episodes) == 3
    first, *later = [episode.reflection for episode in played.episodes]
    assert first is None
    assert [one.completion.text for one in later] == ["It was a game."] * 2
    assert played.memories[0] == ""
    assert played.memories[2].startswith(played.memories[1]), "memory is append-only"
    assert played.memories[1].splitlines() == [
        f"Game 1: {played.episodes[0].recap}",
        "Note 1: It was a game.",
    ]


@pytest.mark.parametrize(
    ("keep", "lines"), [("none", 0), ("reflections", 2), ("history", 2), ("both", 4)]
)
def test_each_kind_of_notes_shows_its_lines(keep, lines):
    played = play(always("pass"), keep)
    assert len(played.memories[2].splitlines()) == lines
    assert (played.episodes[1].reflection is None) == (keep in ("none", "history"))


def test_members_of_a_group_meet_the_same_opponent_seat_and_deals_episode_by_episode():
    choice = random.Random(0)
    members = play_all(
        lambda prompt: always(choice.choice(("pass", "bet")))(prompt),
        [[kuhn(seat=1, opponent="random")] * 8],
        "both",
    )
    cards = [
        {member.episodes[number].turns[0].observation.split(".")[0] for member in members}
        for number in range(3)
    ]
    assert [len(one) for one in cards] == [1, 1, 1]
    assert len(set.union(*cards)) > 1


@pytest.mark.parametrize("opponent", ["mcts-100", "random", "biased-corner-2"])
def test_the_opponent_repeats_its_moves_for_the_same_task_and_moves(opponent):
    tasks = [[tic_tac_toe(opponent=opponent)] * 2]
    one, other = play_all(first_free, tasks, world=TicTacToe())
    assert one.episodes[0].moves == other.episodes[0].moves


@pytest.mark.parametrize("restart", ["same", "fresh"])
def test_restart_same_replays_the_deal_and_the_opening_move_only(restart):
    played = play(always("bet"), "both", world=KuhnPoker(restart=restart), episodes=8)
    deals = {episode.turns[0].observation for episode in played.episodes}
    assert (len(deals) == 1) == (restart == "same")
    world, task = TicTacToe(restart=restart), tic_tac_toe(seat=1)
    played = play(first_free, world=world, task=task, episodes=12)
    assert (len({episode.moves[0] for episode in played.episodes}) == 1) == (restart == "same")
    assert len({tuple(episode.moves) for episode in played.episodes}) > 6, (
        "a won game cannot be replayed move by move"
    )


def test_prompts_are_append_only_within_an_episode():
    turns = play(first_free, world=TicTacToe(), task=tic_tac_toe()).episodes[0].turns
    assert len(turns) >= 3
    for before, after in itertools.pairwise(turns):
        known = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(known)] == known


def test_thoughts_of_past_replies_are_dropped_from_the_prompt():
    def reply(prompt):
        return f"<think>secret plan <action>9</action></think>{first_free(prompt)}"

    seen: list[str] = []
    play(reply, world=TicTacToe(), task=tic_tac_toe(), seen=seen, episodes=1)
    assert len(seen) >= 3
    assert not any("secret" in prompt for prompt in seen)
    assert "<|assistant|><action>1</action><|end|>" in seen[1]


@pytest.mark.parametrize(
    "reply",
    [
        *("gibberish", "<action>fly</action>", "<action>bet", "", "\x00\x07"),
        "<action>" + "x" * 500 + "</action>",
    ],
)
def test_illegal_and_unreadable_replies_are_recorded_and_penalised_never_raised(reply):
    episode = play(lambda prompt: reply, illegal_penalty=0.5).episodes[0]
    assert episode.ending == "illegal"
    assert len(episode.turns) == KuhnPoker().max_turns
    assert all(not turn.legal and turn.penalty == -0.5 for turn in episode.turns)
    assert (episode.score, episode.outcome) == (-2, "lost"), (
        "no reply must not score better than the worst loss"
    )


@pytest.mark.parametrize(
    ("reply", "ending", "rewards"),
    [
        ("open it", "illegal", (0, -10)),
        ("look", "finished", (0, -10)),
        (None, "finished", (10, 10)),
    ],
)
def test_every_episode_without_success_pays_the_failure_reward(reply, ending, rewards):
    options = {"task_types": ("place",), "receptacles": 3, "max_turns": 6}
    for failure_reward, expected in zip((0, -10), rewards, strict=True):
        world = Alfworld(**options, failure_reward=failure_reward)
        expert = world.start(world.episode_seed(3, 0))

        def answer(prompt, expert=expert):
            move = reply or expert.expert()
            if reply is None:
                expert.apply(move)
            return f"<action>{move}</action>"

        task = Task("alfworld", 3, 0, "", "train")
        episode = play(answer, world=world, task=task, episodes=1).episodes[0]
        assert (episode.ending, episode.reward) == (ending, expected)


def test_the_game_continues_after_an_illegal_reply():
    def reply(prompt):
        return always("bet" if "not a legal move" in prompt else "raise")(prompt)

    episode = play(reply, episodes=1).episodes[0]
    assert [turn.legal for turn in episode.turns] == [False, True]
    assert episode.ending == "finished"


@pytest.mark.parametrize(("numbered", "named"), [(True, "game 2 of 3"), (False, "game 1 of 1")])
def test_reflections_name_the_episode_as_the_other_prompts_do(numbered, named):
    seen: list[str] = []
    play(always("bet"), "both", seen=seen, numbered=numbered)
    reflections = [prompt for prompt in seen if "Write a short note" in prompt]
    assert named in reflections[1].lower()


def test_the_reflection_prompt_shows_the_true_outcome_and_no_hidden_card():
    """Against a conservative player, a bet makes J and Q fold, so its card stays hidden."""
    seen: list[str] = []
    games = [play(always("bet"), "both", kuhn(seed=seed), seen=seen) for seed in range(6)]
    folded = [
        episode.recap
        for game in games
        for episode in game.episodes[:2]
        if episode.score == 1 and episode.moves[-1].action == "pass"
    ]
    assert folded
    assert all("Opponent's card: hidden" in one and "You won 1 chip" in one for one in folded)
    reflections = [prompt for prompt in seen if "Write a short note" in prompt]
    assert all(prompt.count("Your card") == 1 for prompt in reflections), (
        "a reflection sees the last episode only"
    )


def test_stop_on_success_ends_the_meta_episode_at_the_first_win():
    def reply(prompt):
        free = prompt.rsplit("Free: ", 1)[1]
        return f"<action>{next(cell for cell in '159374826' if cell in free)}</action>"

    task = tic_tac_toe(opponent="pattern-2", seed=5)
    stopped = play(reply, world=TicTacToe(), task=task, stop_on_success=True)
    assert [episode.outcome for episode in stopped.episodes] == ["won"]
    assert len(play(reply, world=TicTacToe(), task=task).episodes) == 3


def test_results_do_not_depend_on_the_batch():
    tasks = [[kuhn(seed=seed)] * 3 for seed in range(4)]
    found = [play_all(always("pass"), tasks, "both", seed=2, batch=size) for size in (None, 1, 5)]
    assert found[0] == found[1] == found[2]


def test_length_penalty_follows_appendix_a():
    agent, long = scripted_agent(always("pass")), len(byte_chat().encode("<action>pass</action>"))
    for tokens, penalty in ((long, -2.0), (2 * long, 0)):
        limited = replace(agent, sampling=SamplingOptions(max_tokens=tokens))
        played = play(limited, length_penalty=2.0)
        assert played.episodes[0].turns[0].penalty == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>bet</action>", "bet"),
        ("<action>bet</action> or <action> pass </action>", "pass"),
        ("<think><action>bet</action></think>", None),
        ("<think>a</think><action>bet</action>", "bet"),
        ("<action>bet</action><think>hm <action>pass</action>", None),
        ("<action>bet", None),
        ("<action>one<action>two</action>", "two"),
        ("", None),
    ],
)
def test_the_last_complete_action_after_the_thinking_counts(text, action):
    assert read_action(text) == action


def test_choices_are_the_positions_where_legal_moves_diverge():
    chat, turn = byte_chat(), play(always("pass"), episodes=1).episodes[0].turns[0]
    ((place, tokens),) = turn.choices
    assert chat.decode(turn.completion.token_ids[:place]) == "<action>"
    assert {chat.decode((token,)) for token in tokens} == {"p", "b"}


def test_two_engines_do_not_deadlock():
    chat, order = byte_chat(), []

    def named(name):
        return ScriptedEngine(lambda request: order.append(name) or "x", chat.encode, batch=2)

    first, second = named("first"), named("second")

    async def talk(turns):
        for turn in range(turns):
            await (first if turn % 2 else second).sample(Request((1,), 4, turn))
        return turns

    assert run([talk(n) for n in (1, 5, 2, 7, 3)]) == [1, 5, 2, 7, 3]
    assert Counter(order) == {"second": 1 + 3 + 1 + 4 + 2, "first": 2 + 1 + 3 + 1}


def test_the_limit_bounds_the_number_of_concurrent_requests():
    engine = ScriptedEngine(lambda request: "x", byte_chat().encode)

    async def wait():
        return await engine.sample(Request((1,), 4, 0))

    seen = []
    original = engine.step
    engine.step = lambda: seen.append(len(engine.queue)) or original()
    assert len(run((wait() for _ in range(10)), limit=3)) == 10
    assert max(seen) == 3
