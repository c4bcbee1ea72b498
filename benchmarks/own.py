"""Measures what a change of Penstock may make slower, with the options of `penstock bench`.

python benchmarks/own.py waiting --quick    wake-ups, and thousands that wait
python benchmarks/own.py peers              locks of other libraries, and a WATCH loop
python benchmarks/own.py logs               `penstock logs count` beside a short script
"""

import sys

from penstock.bench.topic import TOPICS
from penstock.cli import main

OWN = ("waiting", "peers", "logs")

if __name__ == "__main__":
    TOPICS.update({name: f"topics.{name}" for name in OWN})
    sys.argv.insert(1, "bench")
    sys.exit(main())
