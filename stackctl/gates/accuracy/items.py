# SPDX-License-Identifier: Apache-2.0
"""Prompt sets with known answers, made from a seed.

Two sets: a *packet* of documents, one of which states the figure that is asked for and
another a figure that is not it (a decoy), and a *ledger* with planted errors to count.
Both are as long as asked for. All names and figures are made up, so that no model can
know an answer without reading.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stackctl.gates.draw import Draw
from stackctl.model.canonical import canonical_json

VERSION: Final = 1
"""Part of every draw: raised when a change of the code changes the prompts."""

PLACES: Final = (
    "Ardmoor", "Belwick", "Corran", "Dunlee", "Eskdale", "Farrow", "Glenby",
    "Harwen", "Inverla", "Jorvay", "Kelmar", "Lorne", "Marrick", "Nethby", "Ostley",
    "Penmoor", "Quarran", "Rostow", "Selby Ness", "Tarrin", "Ulwick", "Varley",
    "Wexmoor", "Yarrow",
)  # fmt: skip
WORKS: Final = (
    "sluice", "lock gate", "footbridge", "pumping station", "harbour light",
    "reservoir", "tramway", "signal tower", "ferry landing", "weir",
)  # fmt: skip
OFFICES: Final = (
    "Office of Works", "Board of Waterways", "Harbour Committee", "Survey Department",
    "Treasury", "Parish Council", "Inspector of Bridges", "Registry",
)  # fmt: skip
GOODS: Final = (
    "rope", "lamp oil", "oak planks", "bolts", "chain", "canvas", "pitch", "paint",
    "gravel", "lead sheet", "nails", "bricks",
)  # fmt: skip
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August",
    "September", "October", "November", "December",
)  # fmt: skip

_FILLER: Final = (
    "The {work} at {place} was visited on {date}; {n} loads of stone had arrived and "
    "{m} were still awaited.",
    "A letter from {place} asks for {n} more workmen before the end of {month}.",
    "The water stood {n} inches below the mark on {date}, which is usual for {month}.",
    "The {office} returned the drawings of the {work} at {place} with {n} remarks.",
    "Repairs to the road between {place} and {other} took {n} days and {m} carts.",
    "The meeting of {date} was attended by {n} members and closed after {m} minutes.",
    "Of the {n} tenders for the {work} at {other}, {m} came without a signature.",
    "The keeper at {place} reports {n} ships in {month}, of which {m} paid no dues.",
    "A sum of {m} crowns was paid to the carrier from {other} on {date}.",
    "It was noted that the inventory at {place} lists {n} items and not {m}.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt with its answer.

    Attributes:
        id: Name of the item in samples, like `packet-007`.
        set: Kind of the set: `packet` or `ledger`.
        prompt: What is asked.
        answer: The right answer, in digits.
        decoy: A figure that is there and is wrong; None in a ledger.
        near: How far off a count may be to be called near; 0 in a packet.
    """

    id: str
    set: str
    prompt: str
    answer: str
    decoy: str | None = None
    near: int = 0


def make_items(
    kind: str, *, seed: int, items: int, characters: int, near: int = 1
) -> list[Item]:
    """Make a prompt set.

    Args:
        kind: `packet` or `ledger`.
        seed: The same seed gives the same set, on every machine.
        items: How many.
        characters: Length of each prompt, met to within 2 % or 300 characters.
        near: How far off a count may be to be called near.
    """
    if kind == "packet":
        return [packet(seed, n, items, characters) for n in range(items)]
    return [ledger(seed, n, characters, near) for n in range(items)]


def digest(items: Sequence[Item]) -> str:
    """Return the SHA-256 of a prompt set: prompts, answers, decoys, in order."""
    document = [
        [item.id, item.set, item.prompt, item.answer, item.decoy, item.near]
        for item in items
    ]
    return hashlib.sha256(canonical_json(document)).hexdigest()


def _date(draw: Draw) -> str:
    year = 1871 + draw.below(20)
    return f"{draw.between(1, 28)} {draw.choice(MONTHS)} {year}"


class _Details(dict[str, str]):
    """Draws what a sentence asks for, and only that."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def __missing__(self, name: str) -> str:
        draw = self._draw
        if name == "date":
            return _date(draw)
        if name in ("n", "m"):
            return str(draw.between(3, 90))
        words = {"work": WORKS, "office": OFFICES, "month": MONTHS}
        return draw.choice(words.get(name, PLACES))


def _filler(draw: Draw) -> str:
    return draw.choice(_FILLER).format_map(_Details(draw))


def _figure(draw: Draw, *others: str) -> str:
    """Return five digits that differ from the others in at least three places."""
    while True:
        found = str(draw.between(10_000, 99_999))
        if all(sum(a != b for a, b in zip(found, o, strict=True)) >= 3 for o in others):
            return found


def packet(seed: int, index: int, items: int, characters: int) -> Item:
    """Return a long packet with one right answer and a decoy.

    The adopted figure stands at a depth that goes through the packet from item to item.
    The decoy is a draft of the same figure, before or after it; other works have
    adopted figures of their own.

    Args:
        seed: Of the set.
        index: Of the item, from 0.
        items: Number of items in the set.
        characters: Length of the prompt.
    """
    draw = Draw("packet", VERSION, seed, index)
    place, *others = draw.sample(PLACES, 6)
    work = draw.choice(WORKS)
    answer = _figure(draw)
    decoy = _figure(draw, answer)
    name = f"{work} at {place}"
    adopted = (
        f"Resolution. The board adopts {answer} crowns as the reserve for the {name}. "
        "This figure replaces every earlier one."
    )
    draft = (
        f"Draft, not adopted. It is proposed to set the reserve for the {name} at "
        f"{decoy} crowns."
    )
    statements = [
        f"Resolution. The board adopts {_figure(draw, answer, decoy)} crowns as the "
        f"reserve for the {draw.choice(WORKS)} at {other}."
        for other in others
    ]
    question = (
        f"\n\nQuestion: which reserve, in crowns, did the board adopt for the {name}?\n"
        "Think as long as you need, and close with one line of the form\n"
        "ANSWER: <the number in digits, nothing else>\n"
        "or, if the packet does not state it,\n"
        "ANSWER: NOT STATED\n"
    )
    opening = (
        "The packet below is a series of numbered documents. A question follows it.\n\n"
    )
    # Depths in per mille: the adopted figure's goes evenly through the set.
    depth = (1000 * index + 500) // items
    placed = [(depth, adopted), ((depth + draw.between(150, 850)) % 1000, draft)]
    placed += [(draw.below(1000), text) for text in statements]
    placed.sort()
    room = characters - len(opening) - len(question)
    documents: list[str] = []
    size = 0
    while True:
        number = len(documents) + 1
        while placed and placed[0][0] * room <= 1000 * size:
            documents.append(_document(number, draw, placed.pop(0)[1]))
            size += len(documents[-1]) + 2
            number += 1
        text = " ".join(_filler(draw) for _ in range(draw.between(2, 4)))
        document = _document(number, draw, text)
        left = sum(len(text) + 70 for _, text in placed)
        if size + len(document) + left > room:
            break
        documents.append(document)
        size += len(document) + 2
    for _, text in placed:
        documents.append(_document(len(documents) + 1, draw, text))
    return Item(
        id=f"packet-{index:03d}",
        set="packet",
        prompt=opening + "\n\n".join(documents) + question,
        answer=answer,
        decoy=decoy,
    )


def _document(number: int, draw: Draw, text: str) -> str:
    return f"Document {number}. {draw.choice(OFFICES)}, {_date(draw)}.\n{text}"


def ledger(seed: int, index: int, characters: int, near: int) -> Item:
    """Return a ledger with planted errors to count.

    Every line is a quantity, a price and their product; in some lines the product is
    wrong. About one line in eight is.

    Args:
        seed: Of the set.
        index: Of the item, from 0.
        characters: Length of the prompt.
        near: How far off a count may be to be called near.
    """
    draw = Draw("ledger", VERSION, seed, index)
    opening = (
        "The ledger below lists deliveries: number, date, place, goods, quantity x "
        "price = amount. In some lines the amount is not quantity times price.\n\n"
    )
    question = (
        "\n\nQuestion: in how many lines is the amount wrong?\n"
        "Think as long as you need, and close with one line of the form\n"
        "ANSWER: <the number in digits, nothing else>\n"
    )
    room = characters - len(opening) - len(question)
    lines: list[str] = []
    # The share of wrong lines differs from item to item, so that no count is typical.
    share = draw.between(60, 190)
    wrong = size = 0
    while True:
        quantity, price = draw.between(2, 60), draw.between(2, 60)
        amount = quantity * price
        planted = draw.below(1000) < share
        if planted:
            amount = _wrong(draw, amount)
        line = (
            f"{len(lines) + 1:04d} | {_date(draw)} | {draw.choice(PLACES)} | "
            f"{draw.choice(GOODS)} | {quantity} x {price} = {amount}"
        )
        if lines and size + len(line) > room:
            break
        lines.append(line)
        size += len(line) + 1
        wrong += planted
    return Item(
        id=f"ledger-{index:03d}",
        set="ledger",
        prompt=opening + "\n".join(lines) + question,
        answer=str(wrong),
        near=near,
    )


def _wrong(draw: Draw, amount: int) -> int:
    """Return an amount that looks right and is not."""
    while True:
        digits = list(str(amount))
        place = draw.below(len(digits))
        digits[place] = str(draw.below(10))
        found = int("".join(digits))
        if found != amount and digits[0] != "0":
            return found
