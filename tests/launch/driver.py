"""Starts a stub worker the way `trl` starts a real one: `python driver.py <torchrun flags> -- <worker arguments>`."""

import os
import signal
import sys
from pathlib import Path

from trl.launch.flags import split_argv
from trl.launch.plan import make_plan
from trl.launch.start import start

if __name__ == "__main__":
    # A shell that runs the tests in the background has them ignore Ctrl-C; the job under test is in the foreground.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    border = sys.argv.index("--")
    flags, _ = split_argv(sys.argv[1:border])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    worker = ("stub_worker", *sys.argv[border + 1 :])
    sys.exit(start(make_plan(flags, worker, os.environ, accelerators=0, cores=2)))
