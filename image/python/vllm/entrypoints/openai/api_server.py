"""`python -m vllm.entrypoints.openai.api_server`: the server, as vLLM's older documents start it."""

import os
import sys

from slipway.cli.container import words
from slipway.cli.main import main

if __name__ == "__main__":
    sys.exit(main(words(["serve", *sys.argv[1:]], os.environ)))
