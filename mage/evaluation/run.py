"""Play a fixed panel and compute its figures."""

from collections.abc import Callable
from dataclasses import replace

from mage.evaluation.figures import Evaluation, summarise_rows
from mage.evaluation.panels import PanelName
from mage.evaluation.shards import ShardStore, play_shards
from mage.opponents.base import Population
from mage.play import PlaySetup
from mage.ranks.ranks import Ranks
from mage.seeds import derive
from mage.types import MetaEpisode, Task


def evaluate_panel(
    setup: PlaySetup,
    population: Population,
    tasks: tuple[Task, ...],
    panel: PanelName,
    *,
    plays: int = 1,
    with_ceilings: bool = True,
    ranks: Ranks | None = None,
    on_played: Callable[[int], None] = lambda done: None,
    transcripts: int | None = None,
    store: ShardStore | None = None,
    on_transcripts: Callable[[list[MetaEpisode]], None] = lambda metas: None,
) -> tuple[Evaluation, list[MetaEpisode]]:
    """Figures of the panel, and this rank's meta-episodes of the first `transcripts` tasks.

    `tasks` are those of the panel, all of one split. Seeds depend on the panel alone, so every
    method and every checkpoint meets the same random numbers. The whole panel is played `plays`
    times, each time with other random numbers; `member` of a row is the number of the play, from 0.
    Shards that `store` already holds are not played again.
    """
    split = tasks[0].split
    rows, metas = play_shards(
        setup,
        tasks * plays,
        derive("panel", panel, split),
        ranks=ranks or Ranks(),
        transcripts=transcripts,
        store=store,
        on_played=on_played,
        on_transcripts=on_transcripts,
    )
    numbered = [replace(row, member=place // len(tasks)) for place, row in enumerate(rows)]
    figures = summarise_rows(numbered, setup.environment, population, split, with_ceilings)
    return figures, metas
