"""`python -m e2e.helm`: write the golden files of the charts as Helm 4 renders them now."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from e2e.ground.build import Binaries
from e2e.helm.command import VALUES, Helm, golden_of, run_here

with TemporaryDirectory() as home:
    helm = Helm(Binaries()["helm"], Path(home), run_here)
    for values in VALUES:
        text = yaml.safe_dump_all(helm.rendered(values), sort_keys=False, width=110)
        golden_of(values).write_text(text, encoding="utf-8")
        print(f"wrote {golden_of(values)}")
