"""How long a gateway's event loop was held, as its own metrics tell."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

_HOLDS = "slipstream_gateway_loop_hold_seconds"


class LoopHolds:
    """Counts holds from its making on. `limit` is in seconds of processor time, and one of the metric's buckets.

    What a hypervisor takes from a virtual machine counts as the thread's processor time, so that holds of some 50 ms
    are seen where nothing holds the loop; the inputs whose holds are counted here would take it for seconds.
    """

    def __init__(self, http_url: str, limit: float = 0.2) -> None:
        self._url = f"{http_url}/metrics"
        self._limit = limit
        self._before = self._count()

    def beyond(self) -> int:
        """How many holds were longer than the limit."""
        return self._count() - self._before

    def _count(self) -> int:
        samples = {
            sample.labels["le"]: sample.value
            for family in text_string_to_metric_families(httpx.get(self._url, timeout=60).text)
            if family.name == _HOLDS
            for sample in family.samples
            if sample.name.endswith("_bucket")
        }
        return int(samples["+Inf"] - samples[str(self._limit)])


def longest_hold(http_url: str) -> float:
    """The longest hold since the gateway's start, in seconds of processor time."""
    families = text_string_to_metric_families(httpx.get(f"{http_url}/metrics", timeout=60).text)
    found = [family for family in families if family.name == "slipstream_gateway_loop_longest_hold_seconds"]
    return float(found[0].samples[0].value)
