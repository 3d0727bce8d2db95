"""The stored transcripts of a run: meta-episodes, their credit and the probabilities of moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from mage.agent.agent import Agent
from mage.learn.move_probabilities import move_probabilities
from mage.ranks.dealing import collect_metas
from mage.ranks.ranks import Ranks
from mage.run_folder import RunError, RunFolder
from mage.run_folder.turn_files import TurnMoves, read_moves, write_credits, write_moves
from mage.training.build import Components
from mage.types import Credit, MetaEpisode

TRANSCRIPTS = 60  # tasks of a final panel whose meta-episodes are stored


@dataclass(frozen=True, slots=True)
class TranscriptStore:
    """Writes transcripts; rank 0 alone writes files."""

    folder: RunFolder
    ranks: Ranks
    components: Components

    def score(self, metas: Sequence[MetaEpisode], agent: Agent) -> list[TurnMoves]:
        """Probabilities of the legal moves by the present weights, which must have played them.

        The engine frees its memory first. Play starts with a refresh, so results do not change.
        """
        recipe, model = self.components.recipe, self.components.model
        if model is None or not recipe.run.move_probabilities:
            return []
        self.components.release()
        return move_probabilities(model, agent, metas, recipe.learn)

    def score_update(self, metas: Sequence[MetaEpisode]) -> list[TurnMoves]:
        """The probabilities of this rank's meta-episodes that are stored after the update."""
        if not (self.ranks.is_main or self.ranks.deals_members):
            return []
        return self.score(metas, self.components.agent(evaluating=False))

    def write_update(
        self,
        update: int,
        metas: Sequence[MetaEpisode],
        credits: Sequence[Credit],
        moves: Sequence[TurnMoves],
    ) -> None:
        """Store the meta-episodes of an update; with dealt members those of all ranks."""
        if self.ranks.deals_members:
            metas = collect_metas(metas, self.ranks)
            moves = sorted(chain(*self.ranks.gather(list(moves))), key=_place)
        if self.ranks.is_main:
            self.folder.write_episodes(update, metas)
            write_credits(self.folder.path, update, credits)
            if moves:
                write_moves(self.folder.path, f"step_{update:06d}", moves)
            self.folder.prune_episodes(self.components.recipe.run.keep_transcripts)

    def write_panel(self, name: str, agent: Agent, metas: list[MetaEpisode]) -> None:
        """Add the transcripts of a shard to those of the shards before it.

        Each shard is scored by itself: rounding depends on what is computed together, so a resumed
        evaluation would have other probabilities.
        """
        version = self.components.engine.policy_version
        played = {meta.group for meta in metas}
        earlier = [
            meta
            for meta in self.folder.stored_episodes(name)
            if meta.policy_version == version and meta.group not in played
        ]
        both = sorted([*earlier, *metas], key=lambda meta: meta.group)
        self.folder.write_episodes_of(name, both)
        self._write_panel_moves(name, self.score(metas, agent), {meta.group for meta in both})

    def _write_panel_moves(self, name: str, scored: list[TurnMoves], groups: set[int]) -> None:
        """Add probabilities to those of the meta-episodes that were scored before."""
        new = {one.group for one in scored}
        try:
            stored = read_moves(self.folder.path, name)
        except RunError:
            stored = []
        earlier = [one for one in stored if one.group in groups - new]
        if scored or stored:
            write_moves(self.folder.path, name, sorted([*earlier, *scored], key=_place))


def _place(one: TurnMoves) -> tuple[int, int, int, int]:
    return one.group, one.member, one.episode, one.index
