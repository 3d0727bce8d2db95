"""Samples to tensors. `pack_trie` and `pack_forest` compute shared tokens once; `pack_rows` pads.

The samples form a prefix trie that is laid out depth first (`lay_out`). If `ends[j]` is one past
the last token of j's subtree, query i may attend to key j exactly when `j <= i < ends[j]`.
Positions are depths. A trie is one line, for attention that skips empty blocks of the mask (CUDA).
A forest is for dense masks (CPU): one ROOT (the common prefix of the micro-batch) and B trees
padded to one width, so that attention computes B small squares instead of a large one.
`plans.py` decides which samples form a micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch

from mage.learn.pack.tries import Row, Tree, root_of
from mage.types import Sample

Layout = Literal["trie", "forest", "rows"]


@dataclass(frozen=True, slots=True, eq=False)
class ReplyTokens:
    """One entry per reply token. `parents` are the flat positions that predict them.

    `index` is the token's place in the update. `choice_parents` predict the places where legal
    moves diverge; `choice_tokens` [places, most tokens] are the possible tokens there, padded
    with -1.
    """

    parents: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    on_reflection: torch.Tensor
    index: torch.Tensor
    plays: int
    choice_parents: torch.Tensor
    choice_tokens: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of a forest: `root` tokens, then `trees` blocks of `width` tokens."""

    root: int
    trees: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A micro-batch. L: tokens of a line; B trees of n tokens; W: tokens of the longest row.

    | layout | `input_ids`, `positions` | `ends` | `real` | `shape` |
    |---|---|---|---|---|
    | trie | [1, L] | [L], from the start of the line | None | None |
    | forest | [1, root + B n] | [B, n], from the start of each tree | None | given |
    | rows | [rows, W] | None | [rows, W]: 1 for tokens, 0 for padding | None |

    `tokens` counts the tokens without padding.
    """

    layout: Layout
    input_ids: torch.Tensor
    positions: torch.Tensor
    replies: ReplyTokens
    tokens: int
    ends: torch.Tensor | None = None
    real: torch.Tensor | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TreeTokens:
    """A tree in depth-first order, without the root.

    `ends` count from the start of the tree. `parents` has one array for each row: the flat
    positions (in the whole micro-batch) of the tokens that predict its reply.
    """

    ids: np.ndarray
    positions: np.ndarray
    ends: np.ndarray
    parents: list[np.ndarray]


def lay_out(tree: Tree, *, root: int, base: int) -> TreeTokens:
    """Lay out a tree whose first token after the root gets the flat position `base`.

    Example: three rows of prompt and reply, 9 1 + 5, then 9 1 5 2 + 6, then 9 3 + 4. Rows 2 and 3
    share three tokens and one token with the row before.

    >>> from mage.learn.pack.tries import build_tree, prepare
    >>> from mage.types import Sample, TurnRef
    >>> texts = [((9, 1), (5,)), ((9, 1, 5, 2), (6,)), ((9, 3), (4,))]
    >>> where = TurnRef(0, 0, 0, 0, "random")
    >>> samples = [Sample(ask, reply, (0.0,), 1.0, (), "play", where) for ask, reply in texts]
    >>> found = lay_out(build_tree(prepare(samples)), root=0, base=0)
    >>> found.ids.tolist()
    [9, 1, 5, 2, 6, 3, 4]
    >>> found.positions.tolist()  # 3 follows 9 directly, so its depth is 1
    [0, 1, 2, 3, 4, 1, 2]
    >>> found.ends.tolist()  # all tokens follow 9; the branch that starts with 1 ends before 3
    [7, 5, 5, 5, 5, 7, 7]
    >>> [parents.tolist() for parents in found.parents]  # 1 predicts 5, 2 predicts 6, 3 predicts 4
    [[1], [3], [5]]
    """
    size = tree.size - root
    ids, positions = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    ends = np.full(size, size)  # of the branches that no later row leaves
    parents: list[np.ndarray] = []
    # path[d] is the flat position of the current row's token at depth d. Tokens of the root have
    # their depth as flat position in every tree.
    path = np.arange(max(len(row.ids) for row in tree.rows))
    written = previous_length = 0
    for row, shared in zip(tree.rows, tree.shared, strict=True):
        length, kept = len(row.ids), max(shared, root)
        # 1. Close the branches that this row leaves: they end before its first new token.
        ends[path[kept:previous_length] - base] = written
        # 2. Append the tokens that this row does not share with the row before.
        new = slice(written, written + length - kept)
        ids[new], positions[new] = row.ids[kept:], np.arange(kept, length)
        path[kept:length] = base + np.arange(new.start, new.stop)
        # 3. Note the predictors: each reply token is predicted by the token before it.
        parents.append(path[len(row.sample.prompt_ids) - 1 : length - 1].copy())
        written, previous_length = new.stop, length
    return TreeTokens(ids, positions, ends, parents)


def pack_trie(
    trees: Sequence[Tree],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    pad: Callable[[int], int] = lambda tokens: tokens,
) -> Packed:
    """Lay out trees in one line; `pad` gives its length from the number of tokens."""
    total = sum(tree.size for tree in trees)
    ids = np.zeros(pad(total), dtype=np.int64)
    positions = np.zeros_like(ids)
    ends = np.arange(1, len(ids) + 1)  # padding attends to itself, as in a forest
    parents: list[np.ndarray] = []
    base = 0
    for tree in trees:
        own, place = lay_out(tree, root=0, base=base), slice(base, base + tree.size)
        ids[place], positions[place], ends[place] = own.ids, own.positions, base + own.ends
        parents += own.parents
        base += tree.size
    return Packed(
        layout="trie",
        input_ids=_moved(ids[None], device),
        positions=_moved(positions[None], device),
        replies=_reply_tokens(_rows_of(trees), parents, dtype, device),
        tokens=total,
        ends=_moved(ends, device),
    )


def pack_forest(
    trees: Sequence[Tree], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Packed:
    """Lay out trees as one root and blocks of equal width. `dtype` is the network's."""
    root = root_of(trees)
    sizes = [tree.size - root for tree in trees]
    width = max(sizes)
    shape = Shape(root, len(trees) if width else 0, width)
    ids = np.zeros(root + shape.trees * width, dtype=np.int64)
    positions = np.zeros_like(ids)
    ids[:root], positions[:root] = trees[0].rows[0].ids[:root], np.arange(root)
    # Padding attends to itself: a query without any key gives NaN, and NaN times zero is NaN.
    ends = np.tile(np.arange(1, width + 1), (len(trees), 1))
    parents: list[np.ndarray] = []
    for block, (tree, size) in enumerate(zip(trees, sizes, strict=True)):
        base = root + block * width
        own, place = lay_out(tree, root=root, base=base), slice(base, base + size)
        ids[place], positions[place], ends[block, :size] = own.ids, own.positions, own.ends
        parents += own.parents
    return Packed(
        layout="forest",
        input_ids=_moved(ids[None], device),
        positions=_moved(positions[None], device),
        replies=_reply_tokens(_rows_of(trees), parents, dtype, device),
        tokens=root + sum(sizes),
        ends=_moved(ends, device),
        shape=shape,
    )


def _rows_of(trees: Sequence[Tree]) -> list[Row]:
    return [row for tree in trees for row in tree.rows]


def pack_rows(
    rows: Sequence[Row], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Packed:
    """One padded line per sample: learn.packed = false, the engine probe and tests use it."""
    width = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    real = np.zeros_like(ids)
    for line, row in enumerate(rows):
        ids[line, : len(row.ids)], real[line, : len(row.ids)] = row.ids, 1
    parents = [
        line * width + np.arange(len(row.sample.prompt_ids) - 1, len(row.ids) - 1)
        for line, row in enumerate(rows)
    ]
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    return Packed(
        layout="rows",
        input_ids=_moved(ids, device),
        positions=_moved(positions, device),
        replies=_reply_tokens(rows, parents, dtype, device),
        tokens=int(real.sum()),
        real=_moved(real, device),
    )


def _reply_tokens(
    rows: Sequence[Row], parents: list[np.ndarray], dtype: torch.dtype, device: torch.device | str
) -> ReplyTokens:
    """The reply tokens of rows, in this order, in float32 at least, whatever the model's dtype."""
    samples = [row.sample for row in rows]
    lengths = np.array([len(sample.reply_ids) for sample in samples])
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    reflects = np.array([sample.kind == "reflect" for sample in samples])
    reply_ids = chain.from_iterable(sample.reply_ids for sample in samples)
    old_logprobs = chain.from_iterable(sample.old_logprobs for sample in samples)
    real = np.float64 if dtype == torch.float64 else np.float32

    def moved(array: np.ndarray) -> torch.Tensor:
        return _moved(array.astype(real) if array.dtype == np.float64 else array, device)

    return ReplyTokens(
        parents=moved(np.concatenate(parents)),
        targets=moved(np.fromiter(reply_ids, np.int64, len(place))),
        old_logprobs=moved(np.fromiter(old_logprobs, np.float64, len(place))),
        advantages=moved(np.repeat([float(sample.advantage) for sample in samples], lengths)),
        on_reflection=moved(np.repeat(reflects, lengths)),
        index=moved(np.repeat([row.offset for row in rows], lengths) + place),
        plays=sum(sample.kind == "play" for sample in samples),
        **{name: moved(array) for name, array in _choices(samples, parents).items()},
    )


def _moved(array: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """An array on the device.

    A copy to a GPU leaves from pinned memory. Otherwise the host would wait for all work that it
    has launched before, and the GPU would then wait for the host.
    """
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _choices(samples: Sequence[Sample], parents: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The places where legal moves diverge, padded to the widest."""
    found = [
        (above[place], tokens)
        for sample, above in zip(samples, parents, strict=True)
        for place, tokens in sample.choices
    ]
    width = max((len(tokens) for _, tokens in found), default=0)
    padded = np.array(
        [tokens + (-1,) * (width - len(tokens)) for _, tokens in found], dtype=np.int64
    ).reshape(len(found), width)
    return {
        "choice_parents": np.array([at for at, _ in found], dtype=np.int64),
        "choice_tokens": padded,
    }
