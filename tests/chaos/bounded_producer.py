"""Enqueues into a bounded queue until it is killed. A refused job is tried again at once."""

import sys
from contextlib import suppress

from penstock import Penstock
from penstock.errors import QueueFull

queue = Penstock(sys.argv[1]).queue("mail")
number = 0
while True:
    number += 1
    with suppress(QueueFull):
        if number % 5:
            queue.put(number, tenant=f"t{number % 3}")
        else:
            queue.put_many(range(10), tenant=f"t{number % 3}")
