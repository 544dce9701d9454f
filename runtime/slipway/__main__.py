"""`python -m slipway`."""

import sys

from slipway.cli.main import main

sys.exit(main())
