"""`python -m bridge`: the same as the command `mcp-bridge`."""

import sys

from bridge.cli import main

sys.exit(main())
