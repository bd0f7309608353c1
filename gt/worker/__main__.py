"""`python -m gt.worker --host HOST -p PORT`"""

import sys

from gt.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
