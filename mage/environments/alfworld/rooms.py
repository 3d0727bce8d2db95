"""Rooms and objects of generated games: furniture, objects, and what each object allows.

`SEEN` layouts are used for training and held-out games. `UNSEEN` layouts are used out of domain
only: the same objects in differently furnished rooms.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thing:
    """An object type. `fits` are the receptacle types that may hold it, `verbs` its treatments."""

    fits: frozenset[str]
    verbs: frozenset[str] = frozenset()


def _thing(fits: str, verbs: str = "") -> Thing:
    return Thing(frozenset(fits.split()), frozenset(verbs.split()))


_TOPS = "CounterTop DiningTable SideTable Shelf Cabinet Cart"
_DISH = f"{_TOPS} SinkBasin Microwave Fridge"
_FOOD = "CounterTop DiningTable SideTable SinkBasin Microwave Fridge GarbageCan"
_SMALL = "Desk Dresser SideTable CoffeeTable Shelf Drawer Safe Bed Sofa ArmChair DiningTable"
_BATH = "CounterTop Cabinet Drawer Shelf Toilet SinkBasin BathtubBasin GarbageCan Cart"

_KITCHEN = {
    "Mug": _thing(f"{_DISH} CoffeeMachine", "clean heat cool"),
    "Cup": _thing(_DISH, "clean heat cool"),
    "Plate": _thing(_DISH, "clean heat cool"),
    "Bowl": _thing(_DISH, "clean cool"),
    "Pan": _thing("CounterTop DiningTable StoveBurner SinkBasin Fridge Cabinet", "clean cool"),
    "Pot": _thing("CounterTop DiningTable StoveBurner SinkBasin Fridge Cabinet", "clean cool"),
    "Apple": _thing(_FOOD, "clean heat cool slice"),
    "Tomato": _thing(_FOOD, "clean heat cool slice"),
    "Potato": _thing(_FOOD, "clean heat cool slice"),
    "Egg": _thing(_FOOD, "clean heat cool"),
    "Bread": _thing(_FOOD, "heat cool slice"),
    "Lettuce": _thing(_FOOD, "clean cool slice"),
    "Fork": _thing("CounterTop DiningTable SinkBasin Drawer SideTable", "clean"),
    "Spoon": _thing("CounterTop DiningTable SinkBasin Drawer SideTable", "clean"),
    "Knife": _thing("CounterTop DiningTable SinkBasin Drawer SideTable", "clean"),
    "SaltShaker": _thing("CounterTop DiningTable Drawer Cabinet Shelf SideTable Cart"),
    "PepperShaker": _thing("CounterTop DiningTable Drawer Cabinet Shelf SideTable Cart"),
    "DishSponge": _thing("CounterTop SinkBasin Drawer Cabinet Cart GarbageCan", "clean"),
}
_BATHROOM = {
    "SoapBar": _thing(_BATH, "clean"),
    "Cloth": _thing(_BATH, "clean"),
    "SoapBottle": _thing(_BATH),
    "ToiletPaper": _thing(_BATH),
    "SprayBottle": _thing(_BATH),
    "Candle": _thing(_BATH),
}
_CHAMBER = {
    "Book": _thing(_SMALL),
    "Pen": _thing(f"{_SMALL} GarbageCan"),
    "Pencil": _thing(f"{_SMALL} GarbageCan"),
    "CD": _thing(f"{_SMALL} GarbageCan"),
    "CellPhone": _thing(_SMALL),
    "CreditCard": _thing(_SMALL),
    "KeyChain": _thing(_SMALL),
    "AlarmClock": _thing("Desk Dresser SideTable Shelf CoffeeTable"),
    "RemoteControl": _thing(f"{_SMALL} TVStand Ottoman"),
    "Newspaper": _thing(f"{_SMALL} TVStand Ottoman GarbageCan"),
    "Laptop": _thing("Desk Dresser CoffeeTable Bed Sofa ArmChair DiningTable Ottoman"),
    "Pillow": _thing("Bed Sofa ArmChair Ottoman"),
    "Vase": _thing("Desk Dresser SideTable CoffeeTable Shelf Safe TVStand"),
    "Watch": _thing(f"{_SMALL} TVStand"),
}
THINGS = {**_KITCHEN, **_BATHROOM, **_CHAMBER}
LAMP = "DeskLamp"
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "CoffeeTable")
CLOSED = frozenset(("Cabinet", "Drawer", "Fridge", "Microwave", "Safe"))  # these have doors
APPLIANCE = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Receptacles that a room may have (a repeated type may occur twice), and its objects."""

    name: str
    receptacles: tuple[str, ...]
    things: tuple[str, ...]

    @property
    def has_lamps(self) -> bool:
        return not set(self.things).isdisjoint(_CHAMBER)


_RECEPTACLES = {
    "kitchen": "CounterTop SinkBasin Microwave Fridge Cabinet Drawer Cabinet CounterTop "
    "StoveBurner Drawer GarbageCan CoffeeMachine Cabinet",
    "dining kitchen": "DiningTable Fridge Microwave SinkBasin CounterTop Shelf Cabinet Cabinet "
    "Shelf GarbageCan Drawer",
    "bathroom": "CounterTop SinkBasin Toilet Cabinet Drawer GarbageCan Cabinet BathtubBasin Drawer",
    "bedroom": "Bed Desk Drawer Dresser SideTable Shelf Drawer GarbageCan Safe Drawer Shelf",
    "living room": "Sofa CoffeeTable SideTable ArmChair TVStand Drawer Drawer SideTable "
    "GarbageCan Safe",
    "galley": "CounterTop Cart SinkBasin Fridge Microwave Shelf Drawer SideTable Shelf Cabinet "
    "Cart GarbageCan",
    "studio": "Bed DiningTable SinkBasin Fridge Microwave Shelf SideTable Sofa Drawer Desk",
    "washroom": "SinkBasin Shelf Cart Toilet BathtubBasin Shelf Drawer Cabinet Cart",
    "study": "Desk Shelf ArmChair Ottoman Dresser SideTable Safe Shelf Drawer CoffeeTable Desk",
}


def _layout(name: str, things: dict[str, Thing]) -> Layout:
    return Layout(name, tuple(_RECEPTACLES[name].split()), tuple(things))


SEEN = (
    _layout("kitchen", _KITCHEN),
    _layout("dining kitchen", _KITCHEN),
    _layout("bathroom", _BATHROOM),
    _layout("bedroom", _CHAMBER),
    _layout("living room", _CHAMBER),
)
UNSEEN = (
    _layout("galley", _KITCHEN),
    _layout("studio", {**_KITCHEN, **_CHAMBER}),
    _layout("washroom", _BATHROOM),
    _layout("study", _CHAMBER),
)
