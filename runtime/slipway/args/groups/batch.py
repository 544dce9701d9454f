"""Arguments that `slipway run-batch` has beside those of the engine."""

from __future__ import annotations

from slipway.args.declare import FilePath, arg, group


@group("RunBatch")
class Batch:
    """A file of requests and a file of their results."""

    input_file: str | None = arg(aliases=("-i",))
    """File of requests: a local path, or an http(s) URL that is read with GET. Required."""

    output_file: str | None = arg(aliases=("-o",))
    """File for the results: a local path, or an http(s) URL that is written with PUT. Required."""

    output_tmp_dir: FilePath | None = arg()
    """Folder in which the results are kept until they go to a URL."""

    enable_metrics: bool = arg(False)
    """Serve Prometheus metrics during the run, at --url and --port."""

    url: str = arg("0.0.0.0", no_effect_without=("enable_metrics",))
    """Address, not URL, at which metrics are served."""
