"""``python -m gradcheck_accum``."""

import sys

from gradcheck_accum.cli import main

if __name__ == "__main__":
    sys.exit(main())
