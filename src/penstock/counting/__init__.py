"""Exact counts of the lines that come through a channel of files.

from penstock.counting import Aggregate, Count, Sum, Uniques
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
