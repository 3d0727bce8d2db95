"""A generated catalogue of any size in WebShop's format; it needs no download.

`full` products have titles, descriptions, features and options as long as real ones. `short` ones
have two-word titles and at most one option, for character-level models. Products are drawn one
after the other, so the first 100 of 1,000 equal a catalogue of 100.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

Style = Literal["full", "short"]


@dataclass(frozen=True, slots=True)
class Raw:
    """WebShop's three tables, and where they come from."""

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    human: dict[str, list[dict[str, Any]]]
    place: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of product: its names, attributes, uses and options."""

    category: str
    path: str
    query: str
    nouns: tuple[str, ...]
    traits: tuple[str, ...]
    uses: tuple[str, ...]
    options: tuple[str, ...]
    prices: tuple[float, float]


_COLOURS = (
    "black,white,navy blue,dark grey,red,olive green,beige,light pink,royal purple,teal,mustard "
    "yellow,burgundy,chocolate brown,ivory,coral"
)
_VALUES = {
    "color": tuple(_COLOURS.split(",")),
    "size": ("x-small", "small", "medium", "large", "x-large", "xx-large", "3x-large"),
    "shoe size": ("6", "6.5", "7", "7.5", "8", "8.5", "9", "10", "11", "12"),
    "width": ("24 inch", "30 inch", "36 inch", "48 inch", "60 inch"),
    "pack": ("pack of 1", "pack of 2", "pack of 3", "pack of 6", "pack of 12"),
    "scent": ("lavender", "rose", "lemon", "unscented", "vanilla", "eucalyptus", "green tea"),
    "flavor": (
        "original",
        "dark chocolate",
        "sea salt",
        "honey",
        "barbecue",
        "cinnamon",
        "spicy lime",
    ),
    "length": ("3ft", "6ft", "10ft", "15ft", "25ft"),
    "capacity": ("64gb", "128gb", "256gb", "512gb", "1tb"),
    "volume": ("2 fl oz", "4 fl oz", "8 fl oz", "12 fl oz", "16 fl oz"),
}


_TRAITS = {  # attributes shared by the kinds of a family
    "WEAR": "machine wash,cotton spandex,classic fit,short sleeve,long sleeve,quick drying,"
    "moisture wicking,elastic waist,regular fit,slim fit",
    "SKIN": "cruelty free,paraben free,sulfate free,natural ingredients,dermatologist tested,long "
    "lasting,fragrance free,alcohol free,easy apply,tea tree",
    "HOME": "easy assemble,solid wood,easy clean,space saving,heavy duty,storage space,steel frame,"
    "faux leather,non slip,fully assembled,white finish",
    "TECH": "plug play,high speed,fast charging,noise cancelling,hands free,high resolution,long "
    "lasting,easy install,gold plated,carrying case",
    "FOOD": "gluten free,non gmo,sugar free,low carb,plant based,dairy free,keto friendly,nut free,"
    "high protein,soy free,artificial flavors",
}
# category | path | query | options | prices, and below it nouns | uses | traits
_KINDS = """
fashion | Clothing › Men › Shirts › Dress Shirts | men's dress shirts | color,size | 12-60
    Dress Shirt,Button Down Shirt,Oxford Shirt | the office,weddings,daily wear | WEAR
fashion | Clothing › Men › Pants › Casual | men's pants | color,size | 15-70
    Cargo Pants,Chino Pants,Jogger Pants | hiking,work,daily wear | WEAR
fashion | Clothing › Women › Dresses › Casual | women's dresses | color,size | 14-80
    Maxi Dress,Swing Dress,Wrap Dress | summer parties,the beach,daily wear | WEAR
fashion | Clothing › Women › Tops › Blouses | women's blouses | color,size | 10-45
    Chiffon Blouse,Tunic Top,Peasant Blouse | work,evenings,daily wear | WEAR
fashion | Shoes › Men › Sneakers | men's fashion sneakers | color,shoe size | 20-120
    Running Sneakers,Canvas Sneakers,Walking Shoes | the gym,long walks,daily wear |
        rubber sole,memory foam,arch support,non slip,lace closure
fashion | Shoes › Women › Sandals | women's sandals | color,shoe size | 12-70
    Platform Sandals,Wedge Sandals,Flip Flops | the beach,travel,daily wear |
        rubber sole,open toe,ankle strap,arch support,non slip,memory foam
beauty | Beauty › Skin Care › Face › Moisturizers | face moisturizers | volume,scent | 8-50
    Face Cream,Day Lotion,Hydrating Gel | dry skin,sensitive skin,oily skin | SKIN,hyaluronic acid
beauty | Beauty › Hair Care › Shampoo | shampoo | scent,volume | 6-35
    Shampoo,Scalp Wash,Clarifying Shampoo | dry hair,damaged hair,hair growth | SKIN
beauty | Beauty › Makeup › Lips › Lipstick | lipstick | color | 5-28
    Matte Lipstick,Lip Gloss,Lip Stain | parties,evenings,daily makeup | SKIN
beauty | Beauty › Tools › Nail Care | nail care | pack | 4-30
    Nail Kit,Cuticle Oil,Nail File Set | home use,travel,salons |
        high quality,easy carry,stainless steel,non toxic,long lasting,easy use
beauty | Beauty › Oral Care › Toothbrushes | toothbrushes | color,pack | 4-60
    Sonic Toothbrush,Bamboo Toothbrush | travel,kids,sensitive gums |
        oral hygiene,easy carry,bpa free,eco friendly,sensitive teeth
garden | Home › Furniture › Living Room › Tables › Coffee Tables |
        coffee tables | color,width | 45-420
    Coffee Table,Accent Table,Nesting Table | the living room,small spaces,apartments | HOME
garden | Home › Furniture › Office › Chairs | office chairs | color | 60-480
    Desk Chair,Task Chair,Gaming Chair | the home office,long hours,gaming | HOME,lumbar support
garden | Home › Lighting › Lamps › Table Lamps | table lamps | color | 18-150
    Table Lamp,Desk Lamp,Bedside Lamp | the bedroom,reading,the office |
        glass shade,brushed nickel,energy efficient,easy install,bronze finish,usb port
garden | Home › Bedding › Blankets | bed blankets | color,size | 15-95
    Throw Blanket,Fleece Blanket,Knit Blanket | the couch,winter nights,gifts |
        super soft,machine washable,queen size,king size,twin size,double sided
garden | Home › Window › Curtains | window curtains | color,width | 14-85
    Blackout Curtains,Sheer Curtains,Thermal Curtains | the bedroom,the kitchen,nurseries |
        machine washable,light blocking,super soft,easy install,eco friendly
electronics | Electronics › Audio › Headphones | headphones | color | 15-250
    Wireless Headphones,Over Ear Headphones,Sports Earbuds | running,travel,video calls | TECH
electronics | Electronics › Cables › HDMI | hdmi cables | length | 6-45
    HDMI Cable,Video Cable,Extension Cable | televisions,gaming,monitors | TECH
electronics | Electronics › Phones › Cases | phone cases | color | 7-40
    Phone Case,Bumper Case,Wallet Case | daily use,travel,work |
        wireless charging,tempered glass,heavy duty,glass screen,easy carry,dust proof
electronics | Electronics › Tablets | tablets | color,capacity | 70-600
    Android Tablet,Kids Tablet,Drawing Tablet | school,travel,drawing | TECH,quad core,hd screen
electronics | Electronics › Security › Cameras | security cameras | pack | 25-300
    Security Camera,Doorbell Camera,Baby Monitor | the front door,the nursery,the yard |
        TECH,motion detection,1080p hd
grocery | Grocery › Snacks › Chips | chips | flavor,pack | 3-40
    Tortilla Chips,Veggie Chips,Kettle Chips | parties,lunch boxes,snacking | FOOD
grocery | Grocery › Beverages › Tea | tea | flavor,pack | 4-35
    Herbal Tea,Green Tea Bags,Loose Leaf Tea | mornings,bedtime,gifts | FOOD,caffeine free
grocery | Grocery › Snacks › Bars | protein bars | flavor,pack | 6-48
    Protein Bar,Granola Bar,Energy Bites | the gym,hiking,breakfast | FOOD
grocery | Grocery › Baking › Mixes | baking mixes | flavor,pack | 4-30
    Pancake Mix,Cookie Mix,Bread Mix | breakfast,holidays,kids | FOOD
"""


def _read_kind(line: str) -> _Kind:
    category, path, query, options, prices, nouns, uses, traits = (
        part.strip() for part in line.split("|")
    )
    low, high = map(float, prices.split("-"))
    said = ",".join(_TRAITS.get(trait, trait) for trait in traits.split(","))
    lists = [tuple(text.split(",")) for text in (nouns, said, uses, options)]
    return _Kind(category, path, query, lists[0], lists[1], lists[2], lists[3], (low, high))


_LINES = _KINDS.strip().replace("\n        ", "").replace("\n    ", " | ").splitlines()
KINDS = tuple(map(_read_kind, _LINES))
_SYLLABLES = (
    "ba be bo da de do fa fi ga go ka ki ko la le li lo ma me mi mo na ne ni no pa po ra re ri "
    "ro sa se so ta te ti to va ve vi vo za zo"
)
_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT = {
    "traits": ("soft", "warm", "light"),
    "nouns": ("sock", "mug", "lamp", "bag"),
    "color": ("red", "blue"),
}


def generate(count: int, style: Style = "full") -> Raw:
    """A catalogue of `count` products. About 40 % have an instruction, as in the real one."""
    raw = Raw([], {}, {}, f"the generated catalogue of {count} products")
    taken = set[str]()
    for number in range(count):
        rng = random.Random(f"webshop {style} 0 {number}")
        asin = f"B{number + 1}" if style == "short" else _asin(rng, taken)
        item, known, written = (_short_product if style == "short" else _full_product)(rng, asin)
        raw.products.append(item)
        raw.attributes[asin] = known
        if written:
            raw.human[asin] = [written]
    return raw


def _asin(rng: random.Random, taken: set[str]) -> str:
    while (asin := "B0" + "".join(rng.choices(_CHARACTERS, k=8))) in taken:
        pass
    taken.add(asin)
    return asin


def _item(
    asin: str,
    kind: _Kind,
    title: str,
    description: str,
    bullets: list[str],
    pricing: str,
    options: dict[str, tuple[str, ...]],
) -> dict[str, Any]:
    choices = {
        name: [{"value": value, "image": None} for value in values]
        for name, values in options.items()
    }
    return {
        "asin": asin, "name": title, "full_description": description, "small_description": bullets,
        "pricing": pricing, "images": [""], "product_category": kind.path,
        "category": kind.category, "query": kind.query, "average_rating": "", "page": 1,
        "customization_options": choices or "",
    }  # fmt: skip


def _full_product(
    rng: random.Random, asin: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    kind = rng.choice(KINDS)
    brand = "".join(rng.choices(_SYLLABLES.split(), k=rng.randint(2, 3))).title()
    noun, use = rng.choice(kind.nouns), rng.choice(kind.uses)
    traits = rng.sample(kind.traits, rng.randint(2, min(5, len(kind.traits))))
    title = (
        f"{brand} {traits[0].title()} {noun} for {use.title()}, "
        f"{', '.join(trait.title() for trait in traits[1:])} - Model {rng.randint(10, 999)}"
    )
    options = _options(rng, kind) if rng.random() < 0.5 else {}
    known: dict[str, Any] = {"attributes": traits}
    wanted = rng.sample(traits, rng.randint(1, len(traits)))
    written = None
    if rng.random() < 0.42:
        known |= {
            "instruction": f"Find me {', '.join(wanted)} {kind.query} for {use}",
            "instruction_attributes": wanted,
        }
        chosen = [rng.choice(values) for values in options.values()]
        text = (
            f"i am looking for {' and '.join(wanted)} {kind.query} for "
            f"{use}{''.join(f', {value}' for value in chosen)}."
        )
        written = {
            "asin": asin,
            "instruction": text,
            "attributes": traits,
            "instruction_attributes": wanted,
            "instruction_options": chosen,
        }
    bullets = [f"{trait.upper()}: {_sentence(rng, brand, noun, trait, use)} " for trait in traits]
    description = " ".join(
        _sentence(rng, brand, noun, rng.choice(traits), use) for _ in range(rng.randint(2, 5))
    )
    return (
        _item(asin, kind, title, description, bullets, _pricing(rng, kind), options),
        known,
        written,
    )


def _options(rng: random.Random, kind: _Kind) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(rng.sample(_VALUES[name], rng.randint(2, min(6, len(_VALUES[name])))))
        for name in kind.options
    }


def _pricing(rng: random.Random, kind: _Kind) -> str:
    low = round(rng.uniform(*kind.prices), 2)
    if rng.random() < 0.1:
        return ""
    if rng.random() < 0.7:
        return f"${low}"
    return f"${low}${round(low * rng.uniform(1.1, 1.8), 2)}"


def _sentence(rng: random.Random, brand: str, noun: str, trait: str, use: str) -> str:
    size, years = rng.randint(2, 90), rng.randint(1, 10)
    return rng.choice((
        f"The {brand} {noun.lower()} is {trait} and made for {use}, so you can rely on it "
            "every day.",
        f"Our {noun.lower()} measures {size} x {size + 7} inches and comes with a {years} "
            "year guarantee.",
        f"Designed with care: {trait}, tested by {size * 10} customers, and a good gift for "
            "family and friends.",
        f"If you have questions about this {noun.lower()}, the team of {brand} will answer "
            f"within {years} days.",
        f"Perfect for {use}. Each part is checked by hand before it leaves our workshop in "
            f"batch {size}.",
    ))  # fmt: skip


def _short_product(
    rng: random.Random, asin: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    trait, noun = rng.choice(_SHORT["traits"]), rng.choice(_SHORT["nouns"])
    kind = _Kind("home", f"Home › {noun}", noun, (noun,), (trait,), (), ("color",), (2, 38))
    options = {"color": _SHORT["color"]} if rng.random() < 0.5 else {}
    known = {
        "attributes": [trait],
        "instruction": f"Find me {trait} {noun}",
        "instruction_attributes": [trait],
    }
    item = _item(
        asin,
        kind,
        f"{trait} {noun}",
        f"A {trait} {noun}.",
        [trait],
        f"${rng.randint(2, 38)}.0",
        options,
    )
    return item, known, None
