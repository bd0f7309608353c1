"""`python -m gt.worker --host HOST -p PORT`"""

from gt.worker.main import main

if __name__ == "__main__":
    main()
