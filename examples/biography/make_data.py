"""Generate the demo task: a short biography in English -> a JSON record of five fields.

    python -m examples.biography.make_data

writes train.jsonl and heldout.jsonl next to this file. Every draw is seeded, so the files are reproducible
byte for byte. Each full name belongs to exactly one split (`split_of`), so no biography of one split can turn
up in another; the tiny model is supervised on the third split, "sft", which is never written to disk.
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

Record = dict[str, str | None]

FIELDS = ("birth_date", "birth_place", "death_date", "death_place", "occupation")
ROWS = {"train": 1000, "heldout": 200}
INSTRUCTION = "Extract the record as JSON."


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MONTHS = words("January February March April May June July August September October November December")
WOMEN = words(
    """
    Ada Agnes Alma Anna Berta Clara Dora Edith Elena Elsa Emma Greta Hanna Helga Ida Ingrid Irene Julia Karin
    Lena Lucia Marta Nora Paula Rosa Sigrid Thea Vera
    """
)
MEN = words(
    """
    Adam Albert Anton Bruno Carl David Emil Erik Felix Franz Georg Hans Henrik Hugo Ivan Jakob Johan Karl Leo
    Marco Martin Oskar Otto Paul Peter Simon Tomas Viktor
    """
)
SURNAME_HEADS = words(
    """
    Ander Berg Brand Dahl Ek Fal Grun Hag Holm Kell Kron Lind Lund Mal Mor Nord Ros Sand Sol Stern Sund Tor
    Vall Wald
    """
)
SURNAME_TAILS = words(
    """
    berg by dorf er feld gren hart holt ing man mark mann qvist sen son stein strom ton wick
    """
)
PLACES = words(
    """
    Athens Basel Bergen Berlin Bologna Bremen Bristol Bruges Budapest Cardiff Cologne Dresden Dublin Florence
    Geneva Ghent Graz Hamburg Helsinki Krakow Leiden Lisbon London Lyon Madrid Milan Munich Naples Oslo Oxford
    Paris Porto Prague Riga Rome Seville Turin Venice Vienna Zurich
    """
)
OCCUPATIONS = words(
    """
    actor architect astronomer baker banker botanist carpenter chemist composer dancer doctor engineer farmer
    geologist historian journalist judge lawyer nurse painter philosopher photographer physicist pianist pilot
    poet printer sailor sculptor singer surgeon teacher violinist weaver
    """
)


@dataclass(frozen=True)
class Biography:
    name: str
    text: str
    record: Record


@dataclass(frozen=True)
class Voice:
    """How one biography is told: who it is about, and how its dates are written."""

    name: str
    woman: bool
    living: bool
    month_first: bool

    @property
    def they(self) -> str:
        return "she" if self.woman else "he"

    @property
    def their(self) -> str:
        return "her" if self.woman else "his"

    def date(self, iso: str) -> str:
        year, month, day = iso.split("-")
        month = MONTHS[int(month) - 1]
        return f"{month} {int(day)}, {year}" if self.month_first else f"{int(day)} {month} {year}"


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def iso_date(rng: random.Random, first_year: int, last_year: int) -> str:
    return f"{rng.randint(first_year, last_year)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def draw_record(rng: random.Random, born: int, living: bool) -> Record:
    """Draw the facts; a fact that the text will not mention is None."""
    birth, death = iso_date(rng, born, born), iso_date(rng, born + 40, born + 88)
    known = {field: rng.random() for field in FIELDS}
    return {
        "birth_date": birth if known["birth_date"] < 0.92 else None,
        "birth_place": rng.choice(PLACES) if known["birth_place"] < 0.88 else None,
        "death_date": death if known["death_date"] < 0.90 and not living else None,
        "death_place": rng.choice(PLACES) if known["death_place"] < 0.88 and not living else None,
        "occupation": rng.choice(OCCUPATIONS) if known["occupation"] < 0.95 else None,
    }


def when_where(rng: random.Random, voice: Voice, date: str | None, place: str | None) -> str:
    """The adverbials of an event, in either order: " in Graz on 3 May 1871"; empty if nothing is known."""
    parts = [f" on {voice.date(date)}"] if date else []
    parts += [f" in {place}"] if place else []
    rng.shuffle(parts)
    return "".join(parts)


def birth_sentence(rng: random.Random, voice: Voice, record: Record) -> str:
    """The opening sentence. It always names the person, whatever else is known."""
    event = when_where(rng, voice, record["birth_date"], record["birth_place"])
    occupation = record["occupation"]
    role = article(occupation) if occupation else "well known"
    be = "is" if voice.living else "was"
    if not event:
        return f"{voice.name} {be} {role}."
    forms = [
        f"{voice.name} {be} {role}, born{event}.",
        f"Born{event}, {voice.name} {be} {role}.",
        f"{voice.name} was born{event} and became {role}.",
    ]
    if occupation:
        forms.append(f"The {occupation} {voice.name} was born{event}.")
    return rng.choice(forms)


def death_sentence(rng: random.Random, voice: Voice, record: Record) -> str:
    event = when_where(rng, voice, record["death_date"], record["death_place"])
    if not event:
        return ""
    surname = voice.name.split()[-1]
    return rng.choice(
        [
            f"{voice.they.capitalize()} died{event}.",
            f"{surname} passed away{event}.",
            f"{voice.their.capitalize()} life ended{event}.",
            f"After a short illness {voice.they} died{event}.",
        ]
    )


def distractor(rng: random.Random, voice: Voice, born: int) -> str:
    """A true sentence whose date, place or occupation belongs in no field."""
    year = rng.randint(born + 18, born + 38)
    day = voice.date(iso_date(rng, year, year))
    place, trade = rng.choice(PLACES), rng.choice(OCCUPATIONS)
    they, their = voice.they.capitalize(), voice.their.capitalize()
    forms = [
        f"In {year} {voice.they} moved to {place}.",
        f"{they} married in {place} on {day}.",
        f"On {day} {voice.they} won a prize in {place}.",
        f"{they} studied in {place} with {article(trade)}.",
        f"{their} father, {article(trade)}, came from {place}.",
    ]
    today = f"{they} lives in {place}." if voice.living else f"A street in {place} bears {voice.their} name."
    return rng.choice([*forms, today])


def draw_name(rng: random.Random) -> tuple[str, bool]:
    """A full name, and whether it is a woman's."""
    woman = rng.random() < 0.5
    first, head, tail = (rng.choice(part) for part in (WOMEN if woman else MEN, SURNAME_HEADS, SURNAME_TAILS))
    return f"{first} {head}{tail}", woman


def draw_biography(rng: random.Random) -> Biography:
    name, woman = draw_name(rng)
    voice = Voice(name, woman, living=rng.random() < 0.4, month_first=rng.random() < 0.4)
    born = rng.randint(1930, 1985) if voice.living else rng.randint(1780, 1920)
    record = draw_record(rng, born, voice.living)
    middle = [distractor(rng, voice, born) for _ in range(rng.choice((1, 1, 2)))]
    sentences = [birth_sentence(rng, voice, record), *middle, death_sentence(rng, voice, record)]
    return Biography(name, " ".join(sentence for sentence in sentences if sentence), record)


def split_of(name: str) -> str:
    """The one split that may hold biographies of this name: 10 % held-out, 20 % train, 70 % sft."""
    bucket = zlib.crc32(name.encode()) % 10
    return "heldout" if bucket == 0 else "train" if bucket < 3 else "sft"


def biographies(split: str, seed: int) -> Iterator[Biography]:
    """An endless seeded stream of one split's biographies. Names may recur, with other facts."""
    rng = random.Random(f"{split}-{seed}")
    while True:
        biography = draw_biography(rng)
        if split_of(biography.name) == split:
            yield biography


def distinct(stream: Iterator[Biography]) -> Iterator[Biography]:
    seen: set[str] = set()
    for biography in stream:
        if biography.name not in seen:
            seen.add(biography.name)
            yield biography


def prompt(biography: Biography) -> str:
    return f"{INSTRUCTION}\n{biography.text}"


def answer(record: Record) -> str:
    """The record as the tiny model is taught to write it."""
    return json.dumps(record, separators=(",", ":"))


def to_line(biography: Biography) -> str:
    messages = [{"role": "user", "content": prompt(biography)}]
    return json.dumps({"messages": messages, "record": biography.record}) + "\n"


def render(split: str, seed: int) -> str:
    """The whole text of one split's file: one person a line, nobody twice."""
    return "".join(map(to_line, islice(distinct(biographies(split, seed)), ROWS[split])))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.jsonl and heldout.jsonl of the biography task.")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    args = parser.parse_args()
    for split, rows in ROWS.items():
        (args.out / f"{split}.jsonl").write_text(render(split, args.seed), encoding="utf-8")
        print(f"{split}.jsonl: {rows} rows")


if __name__ == "__main__":
    main()
