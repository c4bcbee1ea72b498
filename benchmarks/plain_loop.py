"""Counts requests per day and country as a short script would: a loop over the lines with one regular expression."""

from __future__ import annotations

import re
import sys
from collections import Counter

from iptocc import country_code

_LINE = re.compile(rb'(\S+) \S+ \S+ \[([^:]+):[^\]]+\] "[^"]*" (\d{3}) (\S+)')


def main(path: str) -> None:
    days, countries = Counter[bytes](), Counter[str | None]()
    known: dict[bytes, str | None] = {}
    with open(path, "rb") as file:
        for line in file:
            if found := _LINE.match(line):
                client, day = found[1], found[2]
                if client not in known:
                    known[client] = country_code(client.decode())
                days[day] += 1
                countries[known[client]] += 1
    print(sum(days.values()), len(countries))


if __name__ == "__main__":
    main(sys.argv[1])
