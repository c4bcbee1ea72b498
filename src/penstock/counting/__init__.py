"""Exact counts of the lines that come through a channel of files.

from penstock.counting import Aggregate, Count, Sum, Uniques

The modules of this folder, in reading order:

    tally.py              the result of a counting function
    kinds.py              the kinds of numbers in a table: counts, exact sums, extremes, first and last, uniques,
                          windows
    dead_batches.py       batches that an aggregate could not count
    snapshot.py           tables as of one moment, and their export
    unsettled.py          counts that the server does not know yet
    aggregate.py          counts and cursor are committed in one script call
    request.py            one request of an access log, and how a format reads it
    stamps.py             the kinds of times in logs
    grammar.py            the parts of a line, and formats that a regular expression describes
    json_lines.py         formats with one JSON object in each line
    w3c.py                logs that name their columns, such as those of IIS and CloudFront
    format_strings.py     formats as a web server's configuration writes them
    prefixes.py           what syslog, Kubernetes and Docker write around each line
    pieces.py             joins the lines that Kubernetes and Docker have split
    formats.py            formats by name, and which of them a log is in
    reasons.py            why a line was rejected, and which format would read it
    access_log.py         parses and counts access logs
    countries.py          the country of a host
"""

from penstock.lazy import LazyNames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.counting.access_log import parse, requests_per
    from penstock.counting.aggregate import Aggregate
    from penstock.counting.countries import mmdb
    from penstock.counting.dead_batches import DeadBatch
    from penstock.counting.kinds import Count, First, Last, Max, Min, Sum, TimeWindow, Uniques
    from penstock.counting.request import Request
    from penstock.counting.snapshot import Snapshot
    from penstock.counting.tally import Tally

__all__: list[str] = []
_names = LazyNames(__name__, __all__)
__all__ += ["parse", "requests_per"]
_names.are_in("penstock.counting.access_log")
__all__ += ["Aggregate"]
_names.are_in("penstock.counting.aggregate")
__all__ += ["mmdb"]
_names.are_in("penstock.counting.countries")
__all__ += ["DeadBatch"]
_names.are_in("penstock.counting.dead_batches")
__all__ += ["Count", "First", "Last", "Max", "Min", "Sum", "TimeWindow", "Uniques"]
_names.are_in("penstock.counting.kinds")
__all__ += ["Request"]
_names.are_in("penstock.counting.request")
__all__ += ["Snapshot"]
_names.are_in("penstock.counting.snapshot")
__all__ += ["Tally"]
_names.are_in("penstock.counting.tally")

if not TYPE_CHECKING:
    __getattr__, __dir__ = _names.load, _names.listed
