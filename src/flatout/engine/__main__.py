"""`python -m flatout.engine`."""

import sys

from flatout.engine.serve import main

sys.exit(main())
