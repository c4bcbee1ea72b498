"""The made-up access log."""

from collections import Counter
from statistics import median

from penstock.counting.access_log import parse
from penstock.terminal.made_up_log import generate


def test_a_made_up_log_is_well_formed_and_the_same_each_time():
    made = list(generate(2000, seed=7))
    requests = [parse(line.encode()) for line in made]
    assert made == list(generate(2000, seed=7)) != list(generate(2000, seed=8))
    assert len(made) == 2000
    assert None not in requests
    assert len({request.day for request in requests if request}) == 4
    requests_of_client = Counter(request.client for request in requests if request).values()
    assert len(requests_of_client) > 200
    assert max(requests_of_client) > 20 * median(requests_of_client)
