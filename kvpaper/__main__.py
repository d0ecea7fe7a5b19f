"""``python -m kvpaper`` is the command line."""

import sys

from kvpaper.cli import main

sys.exit(main())
