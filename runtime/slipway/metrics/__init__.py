"""The server's metrics, declared once: for `/metrics`, the manual, dashboards and alert rules.

`slipway.metrics.registry` fills them; it is imported by the server alone.
"""

from slipway.metrics.declared import METRICS
from slipway.metrics.metric import COMPATIBLE_WITH, Metric, Status, one_two_five, parse_version

__all__ = ["COMPATIBLE_WITH", "METRICS", "Metric", "Status", "one_two_five", "parse_version"]
