"""The small runs that the torture tests kill and damage."""

from pathlib import Path

RECIPE = """
[run]
updates = 3
save_every = 1
evaluate_every = 2
episodes_every = 1
threads = 1
[environments]
name = "kuhn_poker"
[opponents.train]
conservative = 0.5
aggressive = 0.5
[play]
episodes = 2
groups = 2
members = 2
[agent]
max_tokens = 4
reflection_tokens = 4
[engines]
name = "local"
slots = 16
context = 512
[learn]
lr = 1e-3
minibatches = 1
[evaluate]
size = 2
final_size = 2
ceilings = false
temperature = 1.0
top_p = 1.0
top_k = 0
"""
# A shorter run with all kinds of files; it deletes checkpoints and transcripts early.
SHORT = (
    *("--run.updates=2", "--run.evaluate_every=1", "--run.keep=1", "--run.keep_transcripts=1"),
    *("--opponents.train={aggressive = 0.5, league-1 = 0.5}", "--learn.lora_rank=2"),
    *("--warmup.first=true", "--warmup.steps=2", "--warmup.batch=4", "--warmup.turns=4"),
)

# Three tasks that are played one after the other, because the memory is kept between them.
MEMENTO = (
    *("--agent.reflection_tokens=", "--memory.name=memento", "--memory.wave=1"),
    *("--memory.embedding=lexical", "--evaluate.final_size=3"),
)


def write_recipe(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return path


def train_words(recipe: Path, runs: Path, name: str, *overrides: str) -> list[str]:
    """The words that start a run, or that continue it if it has begun."""
    if (runs / name / "recipe.toml").is_file():
        return ["train", "--resume", str(runs / name)]
    return ["train", str(recipe), f"--run.name={name}", "--runs", str(runs), *overrides]
