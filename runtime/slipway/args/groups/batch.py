"""Arguments that `slipway run-batch` has beside those of the engine."""

from __future__ import annotations

from slipway.args.declare import FilePath, arg, group


@group("RunBatch")
class Batch:
    """A file of requests and a file of their results."""

    input_file: str | None = arg(aliases=("-i",))
    """File of requests: a path, an http(s) URL that is read with GET, or - for standard input. Required."""

    output_file: str | None = arg(aliases=("-o",))
    """File for the answers: a path, an http(s) URL that is written with PUT, or - for standard output.

    What the file has of this batch already is not asked again. Required.
    """

    output_tmp_dir: FilePath | None = arg()
    """Folder in which the answers are kept until they go to a URL. Unset takes SLIPWAY_CACHE's.

    A run that was interrupted goes on from what is there.
    """

    enable_metrics: bool = arg(False)
    """Serve /metrics, for Prometheus, and /live during the run, at --url and --port."""

    url: str = arg("0.0.0.0", no_effect_without=("enable_metrics",))
    """Address, not URL, at which metrics are served."""
