"""WebShop's pages as lists of pieces, and two formats of the text that the agent reads.

    text       all pieces in one line, after the chosen options (You have clicked red.):
               Instruction: [SEP] Find me ... [SEP] Back to Search [SEP] Page 1 (...) [SEP] ...
    text_rich  one line each, with marked buttons: [button] Back to Search [button_];
               seen products and chosen options: [clicked button] red [clicked button_]

A page that is longer than its limit is shortened and says so: first long texts, then long lists of
options.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from mage.environments.webshop.products import Product

Mode = Literal["text", "text_rich"]
SUB_PAGES = ("description", "features", "reviews")
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
_MARK = 24  # length of "… (+123 characters)"
_SHORTEST = 40


class Piece(NamedTuple):
    """A text and its kind. A tuple, because every step creates hundreds.

    `fixed` pieces (the instruction) are never cut. `clicked` marks seen products and chosen
    options.
    """

    text: str
    kind: Literal["text", "button", "link", "option"] = "text"
    clicked: bool = False
    fixed: bool = False


def search_page(instruction: str) -> list[Piece]:
    return [
        Piece("WebShop"),
        Piece("Instruction: "),
        Piece(instruction, fixed=True),
        Piece("Search", "button"),
    ]


def results_page(
    instruction: str, page: int, total: int, shown: Sequence[Product], seen: Collection[str]
) -> list[Piece]:
    back = [Piece(PREVIOUS, "button")] if page > 1 else []
    pieces = [
        *_head(instruction),
        Piece(f"Page {page} (Total results: {total})"),
        *back,
        Piece(NEXT, "button"),
    ]
    for product in shown:
        pieces += [
            Piece(product.asin, "link", product.asin in seen),
            *_texts(product.title, product.price_tag),
        ]
    return pieces


def item_page(instruction: str, product: Product, chosen: Mapping[str, str]) -> list[Piece]:
    pieces = [*_head(instruction), Piece(PREVIOUS, "button")]
    for name, values in product.options.items():
        pieces += [
            *_texts(name),
            *(Piece(value, "option", chosen.get(name) == value) for value in values),
        ]
    return [
        *pieces,
        *_texts(product.title, f"Price: {product.price_tag}", "Rating: N.A."),
        *(Piece(name.title(), "button") for name in (*SUB_PAGES, BUY)),
    ]


def sub_page(instruction: str, product: Product, which: str) -> list[Piece]:
    texts: tuple[str, ...] = ()  # WebShop's release has no reviews
    if which == "description":
        texts = (product.description,)
    elif which == "features":
        texts = tuple(f" {bullet}" for bullet in product.bullets)
    return [*_head(instruction), Piece(PREVIOUS, "button"), *_texts(*texts)]


_PURCHASED = ("attrs", "category", "query", "product category")  # empty fields of the final page
_TARGET = "Target asin options attrs price_upper instuction_text category product_category query"


def final_page(asin: str, options: str, score: float) -> list[Piece]:
    """WebShop's page after the purchase. Its empty fields contain None."""
    thanks = ("Thank you for shopping with us!", "Your code: ", "None")
    bought = ("Purchased", "asin", asin, "options", options)
    empty = [text for name in _PURCHASED for text in (name, "None")]
    target = [name.replace("_", " ") for name in _TARGET.split()]
    result = ("Reward", "Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None")
    texts = (*thanks, " (Paste it in your MTurk interface.)", *bought, *empty)
    return [Piece(text) for text in (*texts, *target, "Goal ", "None", *result)]


def _head(instruction: str) -> list[Piece]:
    return [Piece("Instruction:"), Piece(instruction, fixed=True), Piece(BACK, "button")]


def _texts(*texts: str) -> list[Piece]:
    """Pieces for texts that are not empty."""
    return [Piece(text) for text in texts if text.strip() or (text and "\n" not in text)]


# --- Rendering -------------------------------------------------------------------------------


def render(pieces: Sequence[Piece], mode: Mode, limit: int) -> str:
    """The page as the agent reads it, at most `limit` characters long."""
    found = _write(pieces, mode)
    if len(found) <= limit:
        return found
    shorter = _shorten_texts(pieces, len(found) - limit)
    for most in (64, 32, 16, 8, 4, 2, 1):
        if len(found := _write(shorter, mode)) <= limit:
            return found
        shorter = _shorten_texts(_shorten_lists(pieces, most), 1 << 60)
    return found if len(found := _write(shorter, mode)) <= limit else _cut_end(found, limit)


def _write(pieces: Sequence[Piece], mode: Mode) -> str:
    told = [
        f"You have clicked {piece.text}."
        for piece in reversed(pieces)
        if piece.kind == "option" and piece.clicked
    ]
    if mode == "text":
        return " [SEP] ".join([*told, *(piece.text.strip() for piece in pieces)])
    return "\n".join([*told, *map(_line, pieces)])


def _line(piece: Piece) -> str:
    if piece.kind == "text":
        return piece.text
    before = {"button": "", "link": "\n", "option": "  "}[piece.kind]
    button = "clicked button" if piece.clicked else "button"
    return f"{before}[{button}] {piece.text} [{button}_]"


def _shorten_texts(pieces: Sequence[Piece], excess: int) -> list[Piece]:
    """Cut all texts to one length: the largest that saves enough."""
    lengths = [len(piece.text) for piece in pieces if piece.kind == "text" and not piece.fixed]
    low, high = _SHORTEST, max([_SHORTEST, *lengths])
    while low < high:
        middle = (low + high + 1) // 2
        saved = sum(length - middle - _MARK for length in lengths if length > middle + _MARK)
        low, high = (middle, high) if saved >= excess else (low, middle - 1)
    return [_shorten(piece, low) for piece in pieces]


def _shorten(piece: Piece, length: int) -> Piece:
    rest = len(piece.text) - length
    if piece.kind != "text" or piece.fixed or rest <= _MARK:
        return piece
    return piece._replace(text=f"{piece.text[:length]}… (+{rest:,} characters)")


def _shorten_lists(pieces: Sequence[Piece], most: int) -> list[Piece]:
    """Keep the first `most` values of every option, and chosen ones; count the others."""
    kept, row, hidden = list[Piece](), 0, 0
    for piece in [*pieces, Piece("")]:
        if piece.kind == "option":
            row += 1
            shown = row <= most or piece.clicked
            hidden += not shown
            kept += [piece] if shown else []
        else:
            kept += [Piece(f"(+{hidden:,} more values)")] if hidden else []
            row = hidden = 0
            kept.append(piece)
    return kept[:-1]


def _cut_end(text: str, limit: int) -> str:
    mark = f"… (+{len(text) - limit:,} characters)"
    return text[: max(0, limit - len(mark))] + mark
