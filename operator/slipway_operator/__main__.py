"""`python -m slipway_operator`."""

import sys

from slipway_operator.main import main

sys.exit(main())
