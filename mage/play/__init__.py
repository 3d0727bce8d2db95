"""Play: episodes, reflections and meta-episodes as coroutines without a barrier between turns.

Each meta-episode awaits the engine for every reply. The engine batches all waiting requests, and a
finished episode costs nothing. Errors of a model are data: illegal and unreadable replies are
recorded and penalised, never raised.
"""

from mage.play.episode import (
    RAN_OUT,
    EpisodeRef,
    PlaySetup,
    opening_text,
    play_episode,
    recap_text,
    reflect,
)
from mage.play.groups import Entries, Gather, in_order, keep_entries, play_groups, play_wave
from mage.play.meta_episode import play_meta_episode

__all__ = [
    "RAN_OUT",
    "Entries",
    "EpisodeRef",
    "Gather",
    "PlaySetup",
    "in_order",
    "keep_entries",
    "opening_text",
    "play_episode",
    "play_groups",
    "play_meta_episode",
    "play_wave",
    "recap_text",
    "reflect",
]
