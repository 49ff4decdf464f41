"""The program of a Spark job that runs the views of an installation: `deploy/spark/submit`.

It is `penstock views run` without a supervisor. PENSTOCK_CONFIG names the settings, and what stands
behind the program (`--once`) goes to the command.
"""

import sys

from penstock.cli import main

if __name__ == "__main__":
    main(["views", "run", *sys.argv[1:]])
