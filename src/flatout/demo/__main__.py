"""`python -m flatout.demo`."""

import sys

from flatout.demo.serve import main

sys.exit(main())
