"""Play with real games, real opponents and a scripted model."""

import itertools
import random
from collections import Counter

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


def always(move):
    return lambda prompt: (
        "It was a game." if "Write a short note" in prompt else f"<action>{move}</action>"
    )


def play_setup(agent, keep="both", environment=None, **options):
    return PlaySetup(environment or KuhnPoker(), agent, Notes(keep=keep), **options)


def test_a_meta_episode_has_its_episodes_reflections_and_memories():
    (played,) = play_groups(play_setup(scripted_agent(always("bet"))), [[kuhn()]], seed=1)
    assert len(played.episodes) == 3
    assert played.episodes[0].reflection is None
    assert all(
        episode.reflection.completion.text == "It was a game." for episode in played.episodes[1:]
    )
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
    (played,) = play_groups(play_setup(scripted_agent(always("pass")), keep), [[kuhn()]], seed=1)
    assert len(played.memories[2].splitlines()) == lines
    assert (played.episodes[1].reflection is None) == (keep in ("none", "history"))


def test_members_of_a_group_meet_the_same_opponent_seat_and_deals_episode_by_episode():
    choice = random.Random(0)
    agent = scripted_agent(lambda prompt: always(choice.choice(("pass", "bet")))(prompt))
    members = play_groups(play_setup(agent), [[kuhn(seat=1, opponent="random")] * 8], seed=1)
    for number in range(3):
        assert (
            len({member.episodes[number].turns[0].observation.split(".")[0] for member in members})
            == 1
        )
    assert (
        len(
            {member.episodes[0].turns[0].observation.split(".")[0] for member in members}
            | {m.episodes[1].turns[0].observation for m in members}
        )
        > 1
    )


def test_the_opponent_repeats_its_moves_for_the_same_task_and_moves():
    for opponent in ("mcts-100", "random", "biased-corner-2"):
        task = Task("tic_tac_toe", 3, 0, opponent, "train")
        first_free = lambda prompt: f"<action>{prompt.rsplit('Free: ', 1)[1][0]}</action>"  # noqa: E731
        agent = scripted_agent(first_free)
        games = play_groups(play_setup(agent, "none", TicTacToe()), [[task, task]], seed=1)
        assert games[0].episodes[0].moves == games[1].episodes[0].moves


def test_restart_same_replays_the_deal_and_fresh_draws_a_new_one():
    deals = {}
    for restart in ("same", "fresh"):
        (played,) = play_groups(
            play_setup(
                scripted_agent(always("bet")), environment=KuhnPoker(restart=restart), episodes=8
            ),
            [[kuhn()]],
            seed=1,
        )
        deals[restart] = {episode.turns[0].observation for episode in played.episodes}
    assert len(deals["same"]) == 1 < len(deals["fresh"])


def test_restart_same_replays_only_the_opening_move_of_the_opponent():
    first_free = scripted_agent(
        lambda prompt: f"<action>{prompt.rsplit('Free: ', 1)[1][0]}</action>"
    )
    for restart in ("same", "fresh"):
        (played,) = play_groups(
            play_setup(first_free, "none", TicTacToe(restart=restart), episodes=12),
            [[Task("tic_tac_toe", 3, 1, "random", "train")]],
            seed=1,
        )
        assert (len({episode.moves[0] for episode in played.episodes}) == 1) == (restart == "same")
        assert len({tuple(episode.moves) for episode in played.episodes}) > 6, (
            "a won game cannot be replayed move by move"
        )


def test_prompts_are_append_only_within_an_episode():
    agent = scripted_agent(lambda prompt: f"<action>{prompt.rsplit('Free: ', 1)[1][0]}</action>")
    (played,) = play_groups(
        play_setup(agent, "none", TicTacToe()),
        [[Task("tic_tac_toe", 3, 0, "random", "train")]],
        seed=1,
    )
    turns = played.episodes[0].turns
    assert len(turns) >= 3
    for before, after in itertools.pairwise(turns):
        known = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(known)] == known


def test_thoughts_of_past_replies_are_dropped_from_the_prompt():
    seen: list[str] = []

    def reply(prompt):
        free = prompt.rsplit("Free: ", 1)[1][0]
        return f"<think>secret plan <action>9</action></think><action>{free}</action>"

    agent = scripted_agent(reply, seen=seen)
    play_groups(
        play_setup(agent, "none", TicTacToe(), episodes=1),
        [[Task("tic_tac_toe", 3, 0, "random", "train")]],
        seed=1,
    )
    assert len(seen) >= 3
    assert not any("secret" in prompt for prompt in seen)
    assert "<|assistant|><action>1</action><|end|>" in seen[1]


@pytest.mark.parametrize(
    "reply",
    [
        "gibberish",
        "<action>fly</action>",
        "<action>bet",
        "",
        "<action>" + "x" * 500 + "</action>",
        "\x00\x07",
    ],
)
def test_illegal_and_unreadable_replies_are_recorded_and_penalised_never_raised(reply):
    (played,) = play_groups(
        play_setup(scripted_agent(lambda prompt: reply), "none", illegal_penalty=0.5),
        [[kuhn()]],
        seed=1,
    )
    episode = played.episodes[0]
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
    for failure_reward, expected in zip((0, -10), rewards, strict=True):
        world = Alfworld(
            task_types=("place",), receptacles=3, max_turns=6, failure_reward=failure_reward
        )
        task = Task("alfworld", 3, 0, "", "train")
        expert = world.start(world.episode_seed(3, 0))

        def answer(prompt, expert=expert):
            move = reply or expert.expert()
            if reply is None:
                expert.apply(move)
            return f"<action>{move}</action>"

        chosen = play_setup(scripted_agent(answer), "none", world, episodes=1)
        (played,) = play_groups(chosen, [[task]], seed=1)
        assert (played.episodes[0].ending, played.episodes[0].reward) == (ending, expected)


def test_the_game_continues_after_an_illegal_reply():
    seen: list[str] = []
    agent = scripted_agent(
        lambda prompt: (
            "<action>bet</action>" if "not a legal move" in prompt else "<action>raise</action>"
        ),
        seen=seen,
    )
    (played,) = play_groups(play_setup(agent, "none", episodes=1), [[kuhn()]], seed=1)
    assert [turn.legal for turn in played.episodes[0].turns] == [False, True]
    assert played.episodes[0].ending == "finished"


@pytest.mark.parametrize(("numbered", "named"), [(True, "game 2 of 3"), (False, "game 1 of 1")])
def test_reflections_name_the_episode_as_the_other_prompts_do(numbered, named):
    seen: list[str] = []
    agent = scripted_agent(always("bet"), seen=seen)
    play_groups(play_setup(agent, numbered=numbered), [[kuhn()]], seed=1)
    reflections = [prompt for prompt in seen if "Write a short note" in prompt]
    assert named in reflections[1].lower()


def test_the_reflection_prompt_shows_the_true_outcome_and_no_hidden_card():
    seen: list[str] = []
    agent = scripted_agent(always("bet"), seen=seen)
    # Against a conservative player, a bet makes J and Q fold, so its card stays hidden.
    games = [play_groups(play_setup(agent), [[kuhn(seed=seed)]], seed=1)[0] for seed in range(6)]
    folded = [
        episode
        for game in games
        for episode in game.episodes[:2]
        if episode.score == 1 and episode.moves[-1].action == "pass"
    ]
    assert folded
    assert all(
        "Opponent's card: hidden" in episode.recap and "You won 1 chip" in episode.recap
        for episode in folded
    )
    reflections = [prompt for prompt in seen if "Write a short note" in prompt]
    assert all(prompt.count("Your card") == 1 for prompt in reflections), (
        "a reflection sees the last episode only"
    )


def test_stop_on_success_ends_the_meta_episode_at_the_first_win():
    task = Task("tic_tac_toe", 5, 0, "pattern-2", "train")
    agent = scripted_agent(
        lambda prompt: (
            f"<action>{next(c for c in '159374826' if c in prompt.rsplit('Free: ', 1)[1])}</action>"
        )
    )
    (stopped,) = play_groups(
        play_setup(agent, "none", TicTacToe(), stop_on_success=True), [[task]], seed=1
    )
    (all_played,) = play_groups(play_setup(agent, "none", TicTacToe()), [[task]], seed=1)
    assert stopped.episodes[-1].outcome == "won"
    assert len(stopped.episodes) == 1
    assert len(all_played.episodes) == 3


def test_results_do_not_depend_on_the_batch():
    def play(batch):
        return play_groups(
            play_setup(scripted_agent(always("pass"), batch=batch)),
            [[kuhn(seed=s)] * 3 for s in range(4)],
            seed=2,
        )

    assert play(None) == play(1) == play(5)


def test_length_penalty_follows_appendix_a():
    chat = byte_chat()
    agent = scripted_agent(always("pass"), chat)
    from dataclasses import replace

    long = len(chat.encode("<action>pass</action>"))
    tight = replace(agent, sampling=SamplingOptions(max_tokens=long, reflection_tokens=200))
    (played,) = play_groups(play_setup(tight, "none", length_penalty=2.0), [[kuhn()]], seed=1)
    assert played.episodes[0].turns[0].penalty == pytest.approx(-2.0)
    loose = replace(agent, sampling=SamplingOptions(max_tokens=2 * long, reflection_tokens=200))
    (played,) = play_groups(play_setup(loose, "none", length_penalty=2.0), [[kuhn()]], seed=1)
    assert played.episodes[0].turns[0].penalty == 0


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
    chat = byte_chat()
    agent = scripted_agent(always("pass"), chat)
    (played,) = play_groups(play_setup(agent, "none", episodes=1), [[kuhn()]], seed=1)
    turn = played.episodes[0].turns[0]
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
