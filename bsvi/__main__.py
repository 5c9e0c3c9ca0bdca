import sys

from bsvi.cli import main

sys.exit(main())
